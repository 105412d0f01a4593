package bench

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// demoLoad is the tenants: what they sent and what came of it.
type demoLoad struct {
	url    string
	keys   map[string]string // by user
	client *http.Client
	begin  time.Time

	mu    sync.Mutex
	cells map[demoCell]*cellTally // guarded by mu
	sent  map[string]demoCell     // guarded by mu; by the hash of the body
}

type demoCell struct{ user, model string }

// cellTally counts one cell's requests.
type cellTally struct {
	burst                          bool
	sent, answered, rejected, lost int
	queued                         []time.Duration // times in the queue, of the answered
}

func newDemoLoad(url string, keys map[string]string) *demoLoad {
	l := &demoLoad{
		url: url, keys: keys,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: demoUsers * (demoBurst + 8)}},
		cells:  map[demoCell]*cellTally{},
		sent:   map[string]demoCell{},
	}
	for i := range demoUsers {
		for j, model := range demoModels() {
			l.cells[demoCell{demoUser(i), model}] = &cellTally{burst: j == i%len(demoModels())}
		}
	}
	return l
}

// run sends for the duration, then waits until all is answered or the drain time is
// over, and draws meanwhile.
func (l *demoLoad) run(ctx context.Context, o DemoOptions) {
	defer l.client.CloseIdleConnections()
	l.begin = time.Now()
	ctx, cancel := context.WithDeadline(ctx, l.begin.Add(o.Duration+demoDrain))
	defer cancel()
	sending, stop := context.WithTimeout(ctx, o.Duration)
	defer stop()
	var requests sync.WaitGroup
	for cell, tally := range l.cells {
		if tally.burst {
			for n := range burstOf(cell) {
				requests.Go(func() { l.request(ctx, cell, n) })
			}
			continue
		}
		requests.Go(func() {
			for n := 0; ; n++ {
				requests.Go(func() { l.request(ctx, cell, n) })
				if !pause(sending, demoEvery) {
					return
				}
			}
		})
	}
	answered := make(chan struct{})
	go func() { requests.Wait(); close(answered) }()
	l.watch(ctx, o, answered)
	<-answered // soon: every request ends with ctx
}

func burstOf(c demoCell) int {
	if c == (demoCell{demoUser(0), demoModels()[0]}) {
		return demoSlowBurst
	}
	return demoBurst
}

// request sends one chat completion and notes how it ended.
func (l *demoLoad) request(ctx context.Context, c demoCell, n int) {
	body, err := json.Marshal(map[string]any{
		"model":    c.model,
		"user":     c.user,
		"messages": []map[string]string{{"role": "user", "content": fmt.Sprintf("request %d of %s", n, c.user)}},
	})
	if err != nil {
		panic(err) // strings and maps of them always marshal
	}
	sum := sha256.Sum256(body)
	l.note(c, func(t *cellTally) {
		t.sent++
		l.sent[hex.EncodeToString(sum[:])] = c
	})
	status, queued, err := postChat(ctx, l.client, l.url, l.keys[c.user], body)
	l.note(c, func(t *cellTally) {
		switch {
		case err != nil:
			t.lost++
		case status == http.StatusOK:
			t.answered++
			t.queued = append(t.queued, queued)
		default:
			t.rejected++
		}
	})
}

func (l *demoLoad) note(c demoCell, f func(*cellTally)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.cells[c])
}

// postChat asks the gateway at url for a chat completion and returns the answer's status and the time the request spent
// queued.
func postChat(ctx context.Context, client *http.Client, url, key string, body []byte) (int, time.Duration, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(r)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = resp.Body.Close() }() // it was read to its end
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0, 0, err
	}
	waited, err := strconv.ParseFloat(resp.Header.Get("X-Queue-Time-Ms"), 64)
	if err != nil && resp.StatusCode == http.StatusOK {
		return 0, 0, fmt.Errorf("answer without the time queued: %w", err)
	}
	return resp.StatusCode, time.Duration(waited * float64(time.Millisecond)), nil
}
