package reply

import (
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/penstockmq/penstock/broker/lite"
)

func TestFrameRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := Frame{
			Kind:    rapid.SampledFrom([]Kind{Started, Head, Chunk, End, Error, kindAnswer}).Draw(t, "kind"),
			Attempt: rapid.IntRange(0, 1<<20).Draw(t, "attempt"),
			Data:    rapid.SliceOf(rapid.Byte()).Draw(t, "data"),
		}
		if f.Kind != Chunk {
			f.Status = rapid.IntRange(0, 599).Draw(t, "status")
			f.Begun = time.UnixMicro(rapid.Int64Range(1, 1<<50).Draw(t, "begun"))
			f.Header = http.Header{"X-A": {rapid.StringMatching(`[ -~é€\t]*`).Draw(t, "header")}}
			f.Credit = rapid.SampledFrom([]string{"", creditPrefix + ".p.1"}).Draw(t, "credit")
			f.Usage = Usage{Input: rapid.Int64().Draw(t, "in"), Output: rapid.Int64().Draw(t, "out")}
			f.Failure = Failure{Status: 500, Code: "c", Message: rapid.String().Draw(t, "message")}
		}
		seq := rapid.Uint64().Draw(t, "seq")
		m, err := encode("s", seq, f)
		if err != nil {
			t.Fatal(err)
		}
		got, gotSeq, err := decode(m)
		if err != nil {
			t.Fatal(err)
		}
		if gotSeq != seq || !reflect.DeepEqual(got, f) {
			t.Fatalf("got %d %+v\nwant %d %+v", gotSeq, got, seq, f)
		}
	})
}

func TestFrameTooLarge(t *testing.T) {
	f := Frame{Kind: Head, Header: http.Header{"X": {strings.Repeat("x", metaMax)}}}
	if _, err := encode("s", 0, f); !errors.Is(err, errFrame) {
		t.Errorf("encode: %v, want errFrame", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("chunk 1 2", "")
	f.Add("head 1 0", `{"begun":17,"status":200,"header":{"Content-Type":["a"]}}`)
	f.Add("error 1 18446744073709551615", `{"failure":{"code":"x"}}`)
	f.Add("answer -1 0", "{")
	f.Add("kind(9) 99999999999 x", "null")
	f.Fuzz(func(t *testing.T, order, about string) {
		m := nats.NewMsg("s")
		m.Header[headerFrame] = []string{order}
		m.Header[headerMeta] = []string{about}
		got, seq, err := decode(m)
		if err != nil {
			if !errors.Is(err, errFrame) {
				t.Fatalf("%v does not wrap errFrame", err)
			}
			return
		}
		again, err := encode("s", seq, got)
		if errors.Is(err, errFrame) {
			return // escapes made it too large
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, back, err := decode(again); err != nil || back != seq {
			t.Fatalf("decoded again: %d, %v", back, err)
		}
	})
}

func TestRequestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Request{
			ID:          rapid.StringMatching(`([A-Za-z0-9_-]{1,64})?`).Draw(t, "id"),
			User:        rapid.String().Draw(t, "user"),
			Model:       rapid.String().Draw(t, "model"),
			Method:      rapid.SampledFrom([]string{"", "POST", "GET"}).Draw(t, "method"),
			Path:        rapid.String().Draw(t, "path"),
			ContentType: rapid.String().Draw(t, "type"),
			Reply:       rapid.SampledFrom([]string{"", "penstock.reply.gw-1.abc"}).Draw(t, "reply"),
			Stream:      rapid.Bool().Draw(t, "stream"),
			Async:       rapid.Bool().Draw(t, "async"),
			Deadline:    time.UnixMilli(rapid.Int64Range(1, 1<<42).Draw(t, "deadline")),
			HasLevel:    rapid.Bool().Draw(t, "has level"),
			InputTokens: rapid.Int64Range(0, lite.MaxTokens).Draw(t, "input tokens"),
			MaxTokens:   rapid.Int64Range(0, lite.MaxTokens).Draw(t, "max tokens"),
		}
		want.Async = want.Async && want.ID != ""
		if want.HasLevel {
			want.Level = rapid.Uint8Range(0, lite.MaxLevel).Draw(t, "level")
		}
		got, err := FromProperties(want.Properties())
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

func TestDeadlineIsNeverEarly(t *testing.T) {
	deadline := time.Unix(100, 1) // one nanosecond past a millisecond
	got, err := FromProperties(Request{Deadline: deadline}.Properties())
	if err != nil {
		t.Fatal(err)
	}
	if got.Deadline.Before(deadline) || got.Deadline.Sub(deadline) > time.Millisecond {
		t.Errorf("deadline %v came back as %v", deadline, got.Deadline)
	}
}

func TestFromPropertiesRefuses(t *testing.T) {
	for name, p := range map[string]map[string]string{
		"id with a dot":          {PropertyRequestID: "a.b"},
		"id too long":            {PropertyRequestID: strings.Repeat("a", 65)},
		"reply elsewhere":        {PropertyReply: "$JS.API.STREAM.DELETE.x"},
		"reply with a wildcard":  {PropertyReply: "penstock.reply.*.x"},
		"reply with more tokens": {PropertyReply: "penstock.reply.a.b.c"},
		"reply with a space":     {PropertyReply: "penstock.reply.a.b c"},
		"deadline no number":     {PropertyDeadline: "soon"},
		"deadline negative":      {PropertyDeadline: "-1"},
		"accepted no number":     {PropertyAccepted: "1e3"},
		"accepted too late":      {PropertyAccepted: "9223372036854775807"},
		"async without an id":    {PropertyAsync: "true"},
		"level of no number":     {PropertyLevel: "high"},
		"level beyond the last":  {PropertyLevel: "4"},
		"tokens negative":        {PropertyInputTokens: "-1"},
		"tokens beyond the most": {PropertyMaxTokens: "1000000001"},
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := FromProperties(p); !errors.Is(err, ErrRequest) {
				t.Errorf("got %+v, %v, want ErrRequest", r, err)
			}
		})
	}
}
