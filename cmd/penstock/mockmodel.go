package main

import (
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstockmq/penstock/cmd/mockmodel"
	"github.com/penstockmq/penstock/cmd/node"
)

// mockDelay is how long the mock model thinks unless told otherwise.
const mockDelay = 50 * time.Millisecond

func newMockModel(env environment) *cobra.Command {
	def := node.Defaults()
	def.HTTP = "127.0.0.1:8090" // beside a gateway
	cmd := &cobra.Command{
		Use: "mockmodel", Short: "Run an OpenAI-compatible model server that computes nothing", GroupID: groupServers, Args: cobra.NoArgs,
		Long: "Run an OpenAI-compatible model server that computes nothing, on --http. Its behaviour may be changed\n" +
			"while it runs, and its calls read, under /control. The flags of other servers are accepted and not used.",
	}
	fs := cmd.Flags()
	addServerFlags(fs, def)
	fs.Lookup("http").Usage = "`address` it serves on"
	delay := fs.Duration("delay", mockDelay, "time before an answer")
	first := fs.Duration("first-token", 0, "time from there to the first token")
	interval := fs.Duration("interval", 0, "time between tokens")
	tokens := fs.Int("tokens", mockmodel.DefaultBehaviour().Tokens, "length of an answer")
	capacity := fs.Int("capacity", 0, "calls at once before it answers --busy-status; 0 is no bound")
	busy := fs.Int("busy-status", 429, "429 or 503")
	retryAfter := fs.Duration("retry-after", 0, "Retry-After of a busy answer; 0 sends none")
	models := fs.StringSlice("models", nil, "models it has; none means any")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := load(cmd.Flags(), env, def)
		if err != nil {
			return err
		}
		behaviour := mockmodel.DefaultBehaviour()
		behaviour.Delay, behaviour.FirstToken = mockmodel.Duration(*delay), mockmodel.Duration(*first)
		behaviour.Interval, behaviour.Tokens = mockmodel.Duration(*interval), *tokens
		behaviour.RetryAfter = mockmodel.Duration(*retryAfter)
		m, err := mockmodel.New(mockmodel.Options{Models: *models, Behaviour: behaviour, Capacity: *capacity, BusyStatus: *busy})
		if err != nil {
			return fmt.Errorf("%w: %w", errUsage, err)
		}
		ln, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", s.HTTP)
		if err != nil {
			return fmt.Errorf("http: %w", err)
		}
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), node.Addresses{HTTP: ln.Addr().String()}); err != nil {
			return fmt.Errorf("print ready line: %w", err)
		}
		return m.Serve(cmd.Context(), ln)
	}
	return cmd
}
