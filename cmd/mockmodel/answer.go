package mockmodel

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// created is the instant in all answers: they depend on the request alone.
const created = 1_700_000_000

var words = [...]string{
	"water", "runs", "down", "the", "pipe", "at", "a", "rate", "that", "its", "turbine", "can", "take", "and", "no", "faster",
}

// token is the n-th of the call's answer.
func (x *exchange) token(n int) string {
	seed, _ := strconv.ParseUint(x.call.BodyHash[:8], 16, 32) // our own hex
	return words[(seed+uint64(n))%uint64(len(words))] + " "
}

// tokens is the length of the answer, and why it ends there.
func (x *exchange) tokens() (n int, finish string) {
	n, finish = x.how.Tokens, "stop"
	for _, limit := range []*int{x.ask.MaxTokens, x.ask.MaxCompletionTokens} {
		if limit != nil && *limit >= 0 && *limit < n {
			n, finish = *limit, "length"
		}
	}
	return n, finish
}

func (x *exchange) text(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(x.token(i))
	}
	return b.String()
}

type object = map[string]any

func (x *exchange) usage(output int) object {
	input := len(x.body)/4 + 1
	return object{"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output}
}

// chat answers a chat completion.
func (x *exchange) chat() State {
	n, finish := x.tokens()
	id := "chatcmpl-" + x.call.BodyHash[:24]
	if !x.ask.Stream {
		return x.generated(n, object{
			"id": id, "object": "chat.completion", "created": created, "model": x.ask.Model,
			"choices": []object{{
				"index": 0, "finish_reason": finish, "logprobs": nil,
				"message": object{"role": "assistant", "content": x.text(n), "refusal": nil},
			}},
			"usage": x.usage(n),
		})
	}
	chunk := func(delta object, finish any) object {
		return object{
			"id": id, "object": "chat.completion.chunk", "created": created, "model": x.ask.Model,
			"choices": []object{{"index": 0, "delta": delta, "logprobs": nil, "finish_reason": finish}},
		}
	}
	return x.streamed(n, streamShape{
		first: chunk(object{"role": "assistant", "content": ""}, nil),
		token: func(text string) object { return chunk(object{"content": text}, nil) },
		last:  chunk(object{}, finish),
	})
}

// completion answers a text completion.
func (x *exchange) completion() State {
	n, finish := x.tokens()
	part := func(text string, finish any) object {
		return object{
			"id": "cmpl-" + x.call.BodyHash[:24], "object": "text_completion", "created": created, "model": x.ask.Model,
			"choices": []object{{"index": 0, "text": text, "logprobs": nil, "finish_reason": finish}},
		}
	}
	if !x.ask.Stream {
		whole := part(x.text(n), finish)
		whole["usage"] = x.usage(n)
		return x.generated(n, whole)
	}
	return x.streamed(n, streamShape{
		token: func(text string) object { return part(text, nil) },
		last:  part("", finish),
	})
}

// embeddings answers one vector of 8 numbers per input.
func (x *exchange) embeddings() State {
	inputs := 1
	var list []json.RawMessage
	if json.Unmarshal(x.ask.Input, &list) == nil && len(list) > 0 && list[0][0] != '[' && list[0][0] != '"' {
		list = nil // one input, as tokens
	}
	if len(list) > 0 {
		inputs = len(list)
	}
	data := make([]object, inputs)
	for i := range data {
		data[i] = object{"object": "embedding", "index": i, "embedding": x.vector(i)}
	}
	u := x.usage(0)
	delete(u, "completion_tokens")
	return x.generated(0, object{"object": "list", "model": x.ask.Model, "data": data, "usage": u})
}

func (x *exchange) vector(n int) any {
	const size = 8
	vector := make([]float32, size)
	raw := make([]byte, 0, 4*size)
	for i := range vector {
		digit, _ := strconv.ParseUint(x.call.BodyHash[4*i:4*i+4], 16, 16) // our own hex
		vector[i] = float32(digit)/math.MaxUint16 + float32(n)
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(vector[i]))
	}
	if x.ask.EncodingFormat == "base64" {
		return base64.StdEncoding.EncodeToString(raw)
	}
	return vector
}

// echo answers what it got, for backends that are no models.
func (x *exchange) echo() State {
	return x.generated(0, object{
		"object": "echo", "path": x.call.Path, "user": x.call.User, "request_id": x.call.RequestID,
		"bytes": x.call.BodyBytes, "sha256": x.call.BodyHash,
	})
}

// models lists what it has.
func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	names := s.opts.Models
	if len(names) == 0 {
		names = []string{"mock"}
	}
	data := make([]object, len(names))
	for i, name := range names {
		data[i] = object{"id": name, "object": "model", "created": created, "owned_by": "penstock"}
	}
	writeJSON(w, http.StatusOK, object{"object": "list", "data": data})
}

// generated answers without a stream, after the time its tokens take.
func (x *exchange) generated(tokens int, answer object) State {
	if !x.pass(x.how.FirstToken) {
		return StateAborted
	}
	for range tokens - 1 {
		if x.how.Interval > 0 && !x.pass(x.how.Interval) {
			return StateAborted
		}
	}
	body, err := json.Marshal(answer)
	if err != nil {
		return x.refuse(http.StatusInternalServerError, "internal", err.Error())
	}
	state := StateAnswered
	switch x.how.Fault {
	case FaultBroken, FaultBareError, FaultErrorEvent:
		body, state = []byte(`{"id": "broken", "choices": [`), StateFaulted
	case FaultReset, FaultNoEnd:
		body, state = body[:len(body)/2], StateFaulted
	case FaultNone, FaultStatus, FaultRefuse, FaultHang:
	}
	x.w.Header().Set("Content-Type", "application/json")
	x.status(http.StatusOK)
	if _, err := x.w.Write(body); err != nil {
		return StateAborted
	}
	if x.how.Fault == FaultReset {
		x.reset()
	}
	return state
}

// refuse answers an error.
func (x *exchange) refuse(status int, code, message string) State {
	x.note(status)
	kind := "invalid_request_error"
	if status >= 500 {
		kind = "server_error"
	}
	writeError(x.w, status, kind, code, message)
	return StateRefused
}

func (x *exchange) status(code int) {
	x.note(code)
	x.w.WriteHeader(code)
}

func (x *exchange) note(code int) {
	x.s.recorder.update(x.call, func(c *Call) { c.Status = code })
}

// retryAfter says when to come back: in whole seconds for everybody, in milliseconds for those who read them.
func (x *exchange) retryAfter() {
	d := time.Duration(x.how.RetryAfter)
	if d <= 0 {
		return
	}
	x.w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(d.Seconds()))))
	if d%time.Second != 0 {
		x.w.Header().Set("Retry-After-Ms", strconv.FormatInt(d.Milliseconds(), 10))
	}
}

func writeError(w http.ResponseWriter, status int, kind, code, message string) {
	writeJSON(w, status, object{"error": object{"message": message, "type": kind, "param": nil, "code": code}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, fmt.Sprintf("encode answer: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // an error means that the caller has left
}
