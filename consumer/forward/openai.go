package forward

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/penstockmq/penstock/consumer/reply"
)

// What this package reads of OpenAI's JSON: usage, and errors in the shapes that model servers in use send them.

func validJSON(body []byte) bool { return json.Valid(body) }

// usageOf reads the usage of an answer or of a stream's chunk: prompt and completion tokens, or, in the responses API,
// input and output tokens. Zero if there is none.
func usageOf(body []byte) reply.Usage {
	if !bytes.Contains(body, []byte(`"usage"`)) {
		return reply.Usage{} // the common case, without parsing
	}
	type usage struct {
		PromptTokens     int64 `json:"prompt_tokens"`
		CompletionTokens int64 `json:"completion_tokens"`
		InputTokens      int64 `json:"input_tokens"`
		OutputTokens     int64 `json:"output_tokens"`
	}
	var doc struct {
		Usage    *usage `json:"usage"`
		Response *struct {
			Usage *usage `json:"usage"`
		} `json:"response"`
	}
	if json.Unmarshal(body, &doc) != nil {
		return reply.Usage{}
	}
	u := doc.Usage
	if u == nil && doc.Response != nil {
		u = doc.Response.Usage
	}
	if u == nil {
		return reply.Usage{}
	}
	return reply.Usage{
		Input:  max(u.PromptTokens, u.InputTokens, 0),
		Output: max(u.CompletionTokens, u.OutputTokens, 0),
	}
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

// isError says whether a JSON text is an error and not a part of an answer. An answer may have "error": null.
func isError(body []byte) bool {
	if !bytes.Contains(body, []byte(`"error"`)) {
		return false
	}
	var doc struct {
		Error  json.RawMessage `json:"error"`
		Object string          `json:"object"` // vLLM's flat form
		Type   string          `json:"type"`   // the responses API's flat form
	}
	if json.Unmarshal(body, &doc) != nil {
		return false
	}
	return doc.Object == "error" || doc.Type == "error" || (len(doc.Error) > 0 && string(doc.Error) != "null")
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
