package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstockmq/penstock/cmd/node"
)

// addOperationFlags gives a command what it needs to find the admin API, and the
// names it works on. They are settings like those of servers, so a penstock.yaml and
// the environment hold for both.
func addOperationFlags(fs *pflag.FlagSet) {
	def := node.Defaults()
	fs.String(keyConfig, "", "configuration `file` (default penstock.yaml in the current folder, if there)")
	fs.String("admin", def.Admin, "`address` of the admin API")
	fs.String("topic", def.Topic, "parent topic")
	fs.String("group", def.Group, "consumer group")
}

// client speaks to the operations API of a server.
type client struct {
	addr         string
	http         *http.Client
	topic, group string
}

// answerMax bounds the wait for one answer.
const answerMax = 30 * time.Second

// answerBytes bounds an answer: a page of a thousand buckets has a few hundred KiB.
const answerBytes = 64 << 20

func newClient(cmd *cobra.Command, env environment) (*client, error) {
	s, err := load(cmd.Flags(), env, node.Defaults())
	if err != nil {
		return nil, err
	}
	return &client{addr: s.Admin, topic: s.Topic, group: s.Group, http: &http.Client{Timeout: answerMax}}, nil
}

func (c *client) get(ctx context.Context, into any, query url.Values, path ...string) error {
	return c.do(ctx, http.MethodGet, query, nil, into, path...)
}

// do sends a request to /api/v1 and the path's elements, and reads the answer.
func (c *client) do(ctx context.Context, method string, query url.Values, body, into any, path ...string) error {
	u := &url.URL{Scheme: "http", Host: c.addr, RawQuery: query.Encode()}
	u = u.JoinPath(append([]string{"api", "v1"}, escaped(path)...)...)
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		content = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, u.String(), content)
	if err != nil {
		return fmt.Errorf("%w: admin: %w", node.ErrOptions, err)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := c.http.Do(r)
	if err != nil {
		if cause, ok := errors.AsType[*url.Error](err); ok {
			err = cause.Err // without the URL, which says nothing new
		}
		return fmt.Errorf("ask %s: %w (is penstock running there? --admin HOST:PORT names another address)", c.addr, err)
	}
	defer answer.Body.Close() //nolint:errcheck // only read from
	b, err := io.ReadAll(io.LimitReader(answer.Body, answerBytes))
	if err != nil {
		return fmt.Errorf("read answer of %s: %w", c.addr, err)
	}
	if answer.StatusCode >= http.StatusBadRequest {
		return refusal(answer.Status, b)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("read answer of %s: %w", c.addr, err)
	}
	return nil
}

// escaped makes each element one segment, whatever it holds.
func escaped(path []string) []string {
	out := make([]string, len(path))
	for i, p := range path {
		out[i] = url.PathEscape(p)
	}
	return out
}

// refusal is the server's own word.
func refusal(status string, body []byte) error {
	var e struct {
		Error struct{ Code, Message string }
	}
	if err := json.Unmarshal(body, &e); err != nil || e.Error.Message == "" {
		return fmt.Errorf("server answered %s", status)
	}
	return fmt.Errorf("%s (%s)", e.Error.Message, e.Error.Code)
}
