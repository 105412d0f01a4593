package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"testing"
	"time"
)

// Columns of the load. The model treats calls of a column alike.
const (
	columnOpen   = "open"   // no limit
	columnNarrow = "narrow" // in_flight 2
	columnPaced  = "paced"  // rate 8/s
	columnHeld   = "held"   // held for some seconds after the start
	columnShut   = "shut"   // held until the end of the load
	columnFlood  = "flood"  // streams of floodBytes, for callers that do not read
)

const (
	narrowInFlight = 2
	pacedPerSecond = 8
	// floodBytes is the size of an answer of columnFlood, more than all buffers on the way together.
	floodBytes = 256 << 20
	// unreadBytes bounds the bytes that the model writes for a caller that does not read: buffers of three sockets on the
	// loopback and the credit of the stream.
	unreadBytes = 64 << 20
)

// upstream is a model server that repeats the prompt and notes each call in the journal.
type upstream struct {
	url string
	j   *journal
}

func startUpstream(t *testing.T, j *journal) *upstream {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{url: "http://" + ln.Addr().String() + "/v1", j: j}
	server := &http.Server{Handler: u}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(ln)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return u
}

// ServeHTTP implements http.Handler.
func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Model    string
		Stream   bool
		Messages []struct{ Content string }
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(body, &q) != nil || len(q.Messages) == 0 {
		http.Error(w, `{"error":{"message":"invalid request","code":"invalid"}}`, http.StatusBadRequest)
		return
	}
	prompt := q.Messages[0].Content
	c := u.j.called(prompt, q.Model)
	counted := &countingWriter{ResponseWriter: w}
	whole := u.answer(r.Context(), counted, q.Model, q.Stream, prompt)
	u.j.callEnded(c, whole && r.Context().Err() == nil, counted.n)
}

// answer returns whether the answer was written to its end.
func (u *upstream) answer(ctx context.Context, w *countingWriter, column string, stream bool, prompt string) bool {
	work := 20*time.Millisecond + rand.N(200*time.Millisecond)
	if rand.N(30) == 0 {
		work = 2 * time.Second // long enough to be at the model when a fault strikes
	}
	if !pause(ctx, work) {
		return false
	}
	if !stream {
		w.Header().Set("Content-Type", "application/json")
		_, err := fmt.Fprintf(w, `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],`+
			`"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}`, prompt)
		return err == nil
	}
	w.Header().Set("Content-Type", "text/event-stream")
	content, events := prompt, 3
	if column == columnFlood {
		content = prompt + string(bytes.Repeat([]byte("x"), 8<<10))
		events = floodBytes / len(content)
	}
	flush := http.NewResponseController(w.ResponseWriter)
	for range events {
		if _, err := fmt.Fprintf(w, "data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", content); err != nil {
			return false
		}
		if flush.Flush() != nil {
			return false
		}
		if column != columnFlood && !pause(ctx, rand.N(100*time.Millisecond)) {
			return false
		}
	}
	_, err := io.WriteString(w, "data: [DONE]\n\n")
	return err == nil
}

// countingWriter counts the bytes that its connection took.
type countingWriter struct {
	http.ResponseWriter
	n int64
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.n += int64(n)
	return n, err
}

// pause waits for d and returns false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
