package reply

import (
	"fmt"
	"net/http"
)

// Collector gathers an answer instead of sending it on: the sink of an asynchronous request. It belongs to one goroutine.
type Collector struct {
	most int
	res  Result
}

// NewCollector returns a Collector of answers up to most bytes; 0 means 64 MiB.
func NewCollector(most int) *Collector {
	if most <= 0 {
		most = 64 << 20
	}
	return &Collector{most: most}
}

// Head notes status and headers.
func (c *Collector) Head(status int, header http.Header) error {
	c.res = Result{Status: status, Header: header}
	return nil
}

// Chunk appends bytes; ErrTooLarge beyond the limit.
func (c *Collector) Chunk(p []byte) error {
	if len(c.res.Body)+len(p) > c.most {
		return fmt.Errorf("%w: limit %d bytes", ErrTooLarge, c.most)
	}
	c.res.Body = append(c.res.Body, p...)
	return nil
}

// Answer notes a whole answer.
func (c *Collector) Answer(status int, header http.Header, body []byte, u Usage) error {
	if len(body) > c.most {
		return fmt.Errorf("%w: limit %d bytes", ErrTooLarge, c.most)
	}
	c.res = Result{Status: status, Header: header, Body: body, Usage: u}
	return nil
}

// Result is what has been gathered, for [Store.Finish].
func (c *Collector) Result() Result { return c.res }
