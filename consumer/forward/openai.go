package forward

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/penstockmq/penstock/consumer/reply"
)

// What this package reads of OpenAI's JSON: usage, and errors in the shapes that model servers in use send them.

// usage is a usage block: prompt and completion tokens, or, in the responses API, input and output tokens.
type usage struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	InputTokens      int64 `json:"input_tokens"`
	OutputTokens     int64 `json:"output_tokens"`
}

// chunk is what is read of an answer or of one event of a stream.
type chunk struct {
	Usage    *usage `json:"usage"`
	Response *struct {
		Usage *usage `json:"usage"`
	} `json:"response"`
	Choices []choice `json:"choices"`

	Error  json.RawMessage `json:"error"`
	Object string          `json:"object"` // "error" in vLLM's flat form
	Type   string          `json:"type"`   // "error" in the responses API's flat form
	// Delta is text in the responses API's response.output_text.delta and its kin.
	Delta json.RawMessage `json:"delta"`
}

type choice struct {
	Text    string  `json:"text"`
	Delta   content `json:"delta"`
	Message content `json:"message"`
}

type content struct {
	Content   text `json:"content"`
	Reasoning text `json:"reasoning_content"`
	Refusal   text `json:"refusal"`
	ToolCalls []struct {
		Function struct {
			Name      string `json:"name"`
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// text is the length of a string, or of the strings in an array of parts; of anything else 0.
type text int64

// UnmarshalJSON never fails: what is no text has none.
func (t *text) UnmarshalJSON(b []byte) error {
	var s string
	var parts []struct {
		Text string `json:"text"`
	}
	*t = 0
	if len(b) >= 2 && b[0] == '"' && bytes.IndexByte(b, '\\') < 0 { // nearly always
		*t = text(len(b) - 2)
	} else if json.Unmarshal(b, &s) == nil {
		*t = text(len(s))
	} else if json.Unmarshal(b, &parts) == nil {
		for _, p := range parts {
			*t += text(len(p.Text))
		}
	}
	return nil
}

// readChunk reads JSON; false if it is none. A member of another type than ours counts as absent.
func readChunk(body []byte) (c chunk, ok bool) {
	err := json.Unmarshal(body, &c)
	if _, wrongType := errors.AsType[*json.UnmarshalTypeError](err); wrongType {
		err = nil
	}
	return c, err == nil
}

// spent is the usage block, or nil.
func (c chunk) spent() *usage {
	if c.Usage == nil && c.Response != nil {
		return c.Response.Usage
	}
	return c.Usage
}

func (c chunk) usage() reply.Usage {
	u := c.spent()
	if u == nil {
		return reply.Usage{}
	}
	return reply.Usage{
		Input:  max(u.PromptTokens, u.InputTokens, 0),
		Output: max(u.CompletionTokens, u.OutputTokens, 0),
	}
}

// content is how many bytes of generated text there are.
func (c chunk) content() int64 {
	n := 0
	for _, ch := range c.Choices {
		n += len(ch.Text)
		for _, part := range []content{ch.Delta, ch.Message} {
			n += int(part.Content + part.Reasoning + part.Refusal)
			for _, call := range part.ToolCalls {
				n += len(call.Function.Name) + len(call.Function.Arguments)
			}
		}
	}
	var delta string
	if len(c.Delta) > 0 && json.Unmarshal(c.Delta, &delta) == nil {
		n += len(delta)
	}
	return int64(n)
}

// isError says whether it is an error and not a part of an answer. An answer may have "error": null.
func (c chunk) isError() bool {
	return c.Object == "error" || c.Type == "error" || (len(c.Error) > 0 && string(c.Error) != "null")
}

// usageOf reads the usage of a whole answer. Zero if there is none.
func usageOf(body []byte) reply.Usage {
	if !bytes.Contains(body, []byte(`"usage"`)) {
		return reply.Usage{} // without parsing
	}
	c, _ := readChunk(body)
	return c.usage()
}

// failureOf reads an error body: {"error":{"message","type","code"}} as OpenAI and vLLM send it, {"error":"text"}, or a
// flat {"message","code"}. Zero if it is none of these. The status is set if the code is one, as in vLLM.
func failureOf(body []byte) reply.Failure {
	var doc struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  any             `json:"detail"`
		Type    string          `json:"type"`
		Code    any             `json:"code"`
	}
	if json.Unmarshal(body, &doc) != nil {
		return reply.Failure{}
	}
	var inner struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Code    any    `json:"code"`
	}
	var text string
	switch {
	case json.Unmarshal(doc.Error, &text) == nil && text != "":
		return failureFrom(text, "", nil)
	case len(doc.Error) > 0 && json.Unmarshal(doc.Error, &inner) == nil:
		return failureFrom(inner.Message, inner.Type, inner.Code)
	}
	if detail, ok := doc.Detail.(string); ok && doc.Message == "" {
		doc.Message = detail
	}
	return failureFrom(doc.Message, doc.Type, doc.Code)
}

func failureFrom(message, kind string, code any) reply.Failure {
	f := reply.Failure{Message: oneLine(message), Type: kind}
	switch c := code.(type) {
	case string:
		f.Code = c
	case float64:
		f.Code = strconv.FormatFloat(c, 'f', -1, 64)
	}
	if status, err := strconv.Atoi(f.Code); err == nil && status >= 400 && status <= 599 {
		f.Status = status
	}
	return f
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
