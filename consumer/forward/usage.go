package forward

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
)

// A stream of OpenAI's API says what it cost only when it is asked to, in an event more than the answer has. So we ask, for
// callers who said nothing about it, and take that event out again: they get the stream that they would have got. A caller
// who mentions stream_options gets what it says and nothing else; if that leaves the usage out, the stream is charged by
// what was sent.

// askUsage adds the question to a request's body. False: it was not added, the body is as it was.
func askUsage(r Request) ([]byte, bool) {
	if !r.Stream || r.Path != "/v1/chat/completions" && r.Path != "/v1/completions" {
		return r.Body, false
	}
	var ask struct {
		Stream  bool            `json:"stream"`
		Options json.RawMessage `json:"stream_options"`
	}
	if json.Unmarshal(r.Body, &ask) != nil || !ask.Stream || ask.Options != nil {
		return r.Body, false
	}
	open := bytes.IndexByte(r.Body, '{') + 1 // an object, and not an empty one
	const question = `"stream_options":{"include_usage":true},`
	body := make([]byte, 0, len(r.Body)+len(question))
	body = append(body, r.Body[:open]...)
	body = append(body, question...)
	return append(body, r.Body[open:]...), true
}

// blamesUsage says whether an error's body is about the question that we added.
func blamesUsage(body []byte) bool {
	return bytes.Contains(body, []byte("stream_options")) || bytes.Contains(body, []byte("include_usage"))
}

// nullUsage is the member that events before the last have because of the question. Outside of strings it can be nothing
// else, and within one its quotes would be escaped.
var nullUsage = regexp.MustCompile(`,\s*"usage"\s*:\s*null|"usage"\s*:\s*null\s*,`)

// withoutQuestion takes out of an event what is there because of the question; nil if that is all of it.
func withoutQuestion(raw []byte, c chunk) []byte {
	if u := c.spent(); u != nil && c.Choices != nil && len(c.Choices) == 0 {
		return nil
	}
	usual := []byte(`,"usage":null`)
	if at := bytes.LastIndex(raw, usual); at >= 0 {
		return slices.Delete(raw, at, at+len(usual)) // raw is read once
	}
	if !bytes.Contains(raw, []byte(`"usage"`)) {
		return raw
	}
	return nullUsage.ReplaceAll(raw, nil)
}
