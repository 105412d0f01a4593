package reply

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestOrder(t *testing.T) {
	type step struct {
		kind    Kind
		attempt int
		seq     uint64
	}
	for _, tt := range []struct {
		name  string
		steps []step
		want  []Kind
		code  string // of the last frame, if it is the reader's own
	}{
		{"whole", []step{{Started, 1, 0}, {Head, 1, 0}, {Chunk, 1, 1}, {End, 1, 2}}, []Kind{Started, Head, Chunk, End}, ""},
		{"packed", []step{{kindAnswer, 1, 0}}, []Kind{Head, Chunk, End}, ""},
		{"head lost", []step{{Chunk, 1, 1}}, []Kind{Error}, CodeReplyLost},
		{"chunk lost", []step{{Head, 1, 0}, {Chunk, 1, 2}}, []Kind{Head, Error}, CodeReplyLost},
		{"chunk lost before end", []step{{Head, 1, 0}, {End, 1, 2}}, []Kind{Head, Error}, CodeReplyLost},
		{"chunk lost before error", []step{{Head, 1, 0}, {Error, 1, 2}}, []Kind{Head, Error}, ""},
		{"twice the same", []step{{Head, 1, 0}, {Chunk, 1, 1}, {Chunk, 1, 1}, {End, 1, 2}}, []Kind{Head, Chunk, End}, ""},
		{"suspended and started again", []step{{Started, 1, 0}, {Started, 1, 0}, {Head, 1, 0}}, []Kind{Started, Started, Head}, ""},
		{"newer attempt before a head", []step{{Started, 1, 0}, {Started, 2, 0}, {Head, 2, 0}, {End, 2, 1}}, []Kind{Started, Started, Head, End}, ""},
		{"newer attempt after a head", []step{{Head, 1, 0}, {Chunk, 1, 1}, {Started, 2, 0}, {Head, 2, 0}}, []Kind{Head, Chunk, Error}, CodeReplyRestart},
		{"error of a newer attempt after a head", []step{{Head, 1, 0}, {Chunk, 1, 1}, {Error, 2, 0}, {Chunk, 1, 2}}, []Kind{Head, Chunk, Error}, ""},
		{"late frames of the older", []step{{Started, 2, 0}, {Head, 1, 0}, {Head, 2, 0}, {Chunk, 1, 1}, {End, 2, 1}}, []Kind{Started, Head, End}, ""},
		{"nothing after the end", []step{{kindAnswer, 1, 0}, {Head, 2, 0}, {Error, 1, 1}}, []Kind{Head, Chunk, End}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var o order
			var got []Frame
			for _, s := range tt.steps {
				got = append(got, o.admit(Frame{Kind: s.kind, Attempt: s.attempt, Data: []byte("x")}, s.seq)...)
			}
			if k := kinds(got); !slices.Equal(k, tt.want) {
				t.Fatalf("got %v, want %v", k, tt.want)
			}
			if code := got[len(got)-1].Failure.Code; code != tt.code {
				t.Errorf("last frame has code %q, want %q", code, tt.code)
			}
		})
	}
}

// TestOrderNeverMixes holds the invariant of order over any loss and any interleaving of three attempts: what is let
// through is a prefix of one attempt.
func TestOrderNeverMixes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type sent struct {
			frame Frame
			seq   uint64
		}
		attempts := make([][]sent, 3)
		for i := range attempts {
			chunks := rapid.IntRange(0, 4).Draw(t, "chunks")
			kind := Head
			for n := range chunks + 2 {
				if n == chunks+1 {
					kind = End
				}
				attempts[i] = append(attempts[i], sent{Frame{Kind: kind, Attempt: i + 1, Data: []byte{byte(n)}}, uint64(n)})
				kind = Chunk
			}
		}
		var o order
		var got []Frame
		for len(attempts[0])+len(attempts[1])+len(attempts[2]) > 0 {
			i := rapid.IntRange(0, 2).Draw(t, "from")
			if len(attempts[i]) == 0 {
				continue
			}
			s := attempts[i][0]
			attempts[i] = attempts[i][1:]
			if rapid.IntRange(0, 9).Draw(t, "lost") > 0 {
				got = append(got, o.admit(s.frame, s.seq)...)
			}
		}
		for n, f := range got {
			last := n == len(got)-1
			switch {
			case f.Kind == Error && !last, f.Kind == End && !last:
				t.Fatalf("frame %d of %d ends the stream", n, len(got))
			case f.Kind == Error:
			case f.Attempt != got[0].Attempt || f.Data[0] != byte(n):
				t.Fatalf("frame %d: attempt %d number %d after attempt %d", n, f.Attempt, f.Data[0], got[0].Attempt)
			}
		}
	})
}

func kinds(frames []Frame) []Kind {
	out := make([]Kind, len(frames))
	for i, f := range frames {
		out[i] = f.Kind
	}
	return out
}
