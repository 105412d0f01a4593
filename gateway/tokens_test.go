package gateway

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/penstockmq/penstock/broker/lite"
)

func TestTextBytes(t *testing.T) {
	for _, tt := range []struct {
		name, raw string
		want      int64
	}{
		{"prompt", `"four"`, 4},
		{"empty", `""`, 0},
		{"null", `null`, 0},
		{"prompts", `["ab", "c"]`, 3},
		{"token ids", `[1, 20, -3]`, 12},
		{"lists of token ids", `[[1,2],[3]]`, 12},
		{"messages", `[{"role":"system","content":"be brief"},{"role":"user","content":"hi"}]`, 10},
		{"parts", `[{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]`, 3},
		{"no content", `[{"role":"assistant","content":null}]`, 0},
		{"tool call", `[{"tool_calls":[{"id":"c1","function":{"name":"f","arguments":"{\"a\":1}"}}]}]`, 7},
		{"tool result", `[{"type":"function_call_output","call_id":"c1","output":"done"}]`, 4},
		{"escapes", `"\"\\\n\u00e9\u20ac\ud83d\ude00"`, 1 + 1 + 1 + 2 + 3 + 4},
		{"text as it is", `"é€😀"`, 2 + 3 + 4},
		{"blanks", " [ \"a\" ,\n\"b\" ] ", 2},
		{"not JSON", `[{"content`, 0},
		{"not JSON at all", `:]},"`, 0},
		{"half an escape", `"\u12`, 1},
		{"nothing", ``, 0},
	} {
		if got := textBytes([]byte(tt.raw)); got != tt.want {
			t.Errorf("%s: %d bytes, want %d", tt.name, got, tt.want)
		}
	}
}

func TestTokensOf(t *testing.T) {
	for text, want := range map[int64]int64{0: 1, 1: 1, 4: 1, 5: 2, 4000: 1000, 1 << 60: lite.MaxTokens} {
		if got := tokensOf(text); got != want {
			t.Errorf("%d bytes are %d tokens, want %d", text, got, want)
		}
	}
}

func TestParseBodySizes(t *testing.T) {
	for _, tt := range []struct {
		body      string
		text, max int64
	}{
		{chatBody, 2, 0},
		{`{"model":"m","prompt":"abcd","max_tokens":16}`, 4, 16},
		{`{"model":"m","input":["ab","cd"],"max_output_tokens":7}`, 4, 7},
		{`{"model":"m","max_completion_tokens":20,"max_tokens":10}`, 0, 20}, // the larger one: a server may take either
		{`{"model":"m","max_tokens":10,"max_tokens":30}`, 0, 30},
		{`{"model":"m","max_tokens":1e3}`, 0, 1000},
		{`{"model":"m","max_tokens":1048576}`, 0, lite.MaxOutputTokens},
		{`{"model":"m","max_tokens":null}`, 0, 0},
		{`{"model":"m","max_tokens":-5}`, 0, 0},
		{`{"model":"m","max_tokens":"16"}`, 0, 0},
		{`{"model":"m","metadata":{"prompt":"not this"},"stop":"nor this"}`, 0, 0},
	} {
		f, err := parseBody([]byte(tt.body))
		if err != nil || f.textBytes != tt.text || f.maxTokens != tt.max {
			t.Errorf("%s: %d bytes of text, at most %d tokens, %v", tt.body, f.textBytes, f.maxTokens, err)
		}
	}
}

// Tokens that no model can answer would be reserved from limits that other users share.
func TestMoreOutputThanAnyModelGivesIsRefused(t *testing.T) {
	for _, field := range []string{"max_tokens", "max_completion_tokens", "max_output_tokens"} {
		for _, value := range []string{"1048577", "1000000000", "1e300"} {
			_, err := parseBody([]byte(`{"model":"m","` + field + `":` + value + `}`))
			if err == nil {
				t.Errorf("%s %s is taken", field, value)
				continue
			}
			out := refusalOf(err)
			text := string(out.body())
			for _, word := range []string{field, value, "1048576"} {
				if out.http != http.StatusBadRequest || !strings.Contains(text, word) {
					t.Errorf("%s %s: %d %s does not say %s", field, value, out.http, text, word)
				}
			}
		}
	}
}

// The count in place is that of the decoded value, and no input makes it panic.
func FuzzTextBytes(f *testing.F) {
	for _, seed := range []string{`[{"content":"a\u0000\ud800"}]`, `{"text":{"text":[1,"b"]}}`, `"\`, `[[[`, `{"":1,"content":-0.1e-7}`, `{,}`, `{]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		textBytes(raw)
		var v any
		if json.Unmarshal(raw, &v) != nil {
			return
		}
		plain, err := json.Marshal(v)
		must(t, err)
		if got, want := textBytes(plain), countText(v, true); got != want {
			t.Fatalf("%s: %d bytes, want %d", plain, got, want)
		}
	})
}

func countText(v any, counts bool) (n int64) {
	switch v := v.(type) {
	case string:
		if counts {
			n = int64(len(v))
		}
	case float64:
		if counts {
			n = bytesPerToken
		}
	case []any:
		for _, e := range v {
			n += countText(e, counts)
		}
	case map[string]any:
		for key, e := range v {
			n += countText(e, isText([]byte(key)))
		}
	}
	return n
}
