package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/penstockmq/penstock/broker/datadir"
	"github.com/penstockmq/penstock/cmd/mockmodel"
	"github.com/penstockmq/penstock/cmd/node"
	"github.com/penstockmq/penstock/consumer/mq"
)

func newBroker(env environment) *cobra.Command {
	def := node.Defaults()
	def.Parts = node.Broker | node.NATS | node.Admin
	cmd := &cobra.Command{
		Use: "broker", Short: "Run a broker, with an embedded NATS server for gateways and consumers", GroupID: groupServers, Args: cobra.NoArgs,
		Long: "Run a broker. Gateways and consumers elsewhere need its gRPC address, and a NATS server: the one\n" +
			"embedded here, or another that all of them name with --nats-url.",
	}
	addServerFlags(cmd.Flags(), def)
	addBrokerFlags(cmd.Flags(), def)
	addSharedFlags(cmd.Flags(), def)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return serve(cmd, env, def) }
	return cmd
}

func newGateway(env environment) *cobra.Command {
	def := node.Defaults()
	def.Parts = node.Gateway | node.Admin
	cmd := &cobra.Command{
		Use: "gateway", Short: "Run a gateway for a broker elsewhere", GroupID: groupServers, Args: cobra.NoArgs,
		Long: "Run a gateway. It finds the broker at --broker (default the value of --grpc) and NATS at\n" +
			"--nats-url (default the value of --nats): on the broker's machine the defaults fit.",
	}
	addServerFlags(cmd.Flags(), def)
	addClientFlags(cmd.Flags(), def)
	addGatewayFlags(cmd.Flags(), def)
	addSharedFlags(cmd.Flags(), def)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return serve(cmd, env, def) }
	return cmd
}

func newConsumer(env environment) *cobra.Command {
	def := node.Defaults()
	def.Parts = node.Pool | node.Admin
	cmd := &cobra.Command{
		Use: "consumer", Short: "Run a consumer pool for a broker elsewhere", GroupID: groupServers, Args: cobra.NoArgs,
		Long: "Run a consumer pool. It finds the broker at --broker (default the value of --grpc) and NATS at\n" +
			"--nats-url (default the value of --nats). Upstreams are named with --model or in penstock.yaml.",
	}
	addServerFlags(cmd.Flags(), def)
	addClientFlags(cmd.Flags(), def)
	addPoolFlags(cmd.Flags(), def)
	addSharedFlags(cmd.Flags(), def)
	addModelFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return serve(cmd, env, def) }
	return cmd
}

func newUp(env environment) *cobra.Command {
	def := upDefaults()
	def.Parts = node.Whole
	cmd := &cobra.Command{
		Use: "up", Short: "Run everything in one process", GroupID: groupServers, Args: cobra.NoArgs,
		Long: "Run broker, gateway, consumer pool and NATS in one process: the default for one machine.\n\n" +
			"It needs an upstream: --model NAME=URL, a list in penstock.yaml, or --mock to try it out.\n" +
			"Without a key file it makes one in the data folder, with a key that it prints this once.",
	}
	addServerFlags(cmd.Flags(), def)
	addBrokerFlags(cmd.Flags(), def)
	addGatewayFlags(cmd.Flags(), def)
	addPoolFlags(cmd.Flags(), def)
	addSharedFlags(cmd.Flags(), def)
	addModelFlags(cmd.Flags())
	mock := cmd.Flags().Bool("mock", false, "answer with a built-in mock model in place of upstreams")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return up(cmd, env, def, *mock) }
	return cmd
}

// serve runs the parts of def until a signal comes.
func serve(cmd *cobra.Command, env environment, def node.Options) error {
	s, err := load(cmd.Flags(), env, def)
	if err != nil {
		return err
	}
	if s.Parts = def.Parts; s.Parts.Has(node.Gateway) {
		s.Keys = keyFile(s.Options)
	}
	return runNode(cmd, s)
}

// up is serve with what makes a first start work: a key, and a mock model if asked.
func up(cmd *cobra.Command, env environment, def node.Options, mock bool) error {
	s, err := load(cmd.Flags(), env, def)
	if err != nil {
		return err
	}
	s.Parts = def.Parts
	if mock {
		if len(s.Models) > 0 {
			return fmt.Errorf("%w: mock: upstreams are configured too; want one or the other", node.ErrOptions)
		}
		url, stop, err := startMock(cmd.Context())
		if err != nil {
			return err
		}
		defer stop()
		s.Models = []node.ModelOptions{{Name: node.Wildcard, URL: url}}
	}
	ours := s.Keys == "" // a file that was named is never made: its name may be wrong
	s.Keys = keyFile(s.Options)
	_, err = newLogger(s, io.Discard)
	if err = errors.Join(err, s.Validate()); err != nil {
		return err // before a key is made for nothing
	}
	if ours {
		if err := makeFirstKey(cmd.Context(), cmd.ErrOrStderr(), s.Options); err != nil {
			return err
		}
	}
	return runNode(cmd, s)
}

// runNode starts a node, says so, and runs it until a signal comes or a part fails.
func runNode(cmd *cobra.Command, s settings) error {
	log, err := newLogger(s, cmd.ErrOrStderr())
	if err = errors.Join(err, s.Validate()); err != nil {
		return err
	}
	s.Logger, s.Version = log, buildVersion()
	s.StopNow = secondSignal(cmd.Context())
	if s.Adapter == node.AdapterOfficial {
		if err := setUpOfficial(s.Options); err != nil {
			return err
		}
	}
	n, err := node.Start(cmd.Context(), s.Options)
	if err != nil {
		if errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
			return nil //nolint:nilerr // told to stop before it served
		}
		return err
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), n.Addrs()); err != nil {
		return errors.Join(fmt.Errorf("print ready line: %w", err), n.Stop())
	}
	err = n.Run(cmd.Context())
	if err == nil {
		log.Info("stopped")
	}
	return err
}

// setUpOfficial configures the official client, which is one for the process: its log
// goes beside our data and not into the home folder.
func setUpOfficial(o node.Options) error {
	return mq.SetUpOfficial(mq.OfficialProcess{
		TLS: o.BrokerTLS && !o.Parts.Has(node.Broker), LogDir: filepath.Join(o.Data, "logs"), LogLevel: "warn",
	})
}

func newLogger(s settings, w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	var errs []error
	if err := level.UnmarshalText([]byte(s.LogLevel)); err != nil {
		errs = append(errs, fmt.Errorf("%w: %s: %q: want debug, info, warn or error", node.ErrOptions, keyLogLevel, s.LogLevel))
	}
	opts := &slog.HandlerOptions{Level: level}
	switch s.LogFormat {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), errors.Join(errs...)
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), errors.Join(errs...)
	}
	return nil, errors.Join(append(errs, fmt.Errorf("%w: %s: %q: want text or json", node.ErrOptions, keyLogFormat, s.LogFormat))...)
}

// keyFile is the configured key file, or the one in the data folder.
func keyFile(o node.Options) string {
	if o.Keys != "" {
		return o.Keys
	}
	return filepath.Join(o.Data, "keys.yaml")
}

// makeDataFolder is for those who write there before a server does.
func makeDataFolder(o node.Options) error {
	if err := os.MkdirAll(o.Data, 0o700); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	return nil
}

// firstUser owns the key that up makes.
const firstUser = "default"

// makeFirstKey makes a key unless there is a key file. It goes to standard error:
// standard output has the ready line alone. The data folder is locked meanwhile: a
// second process on the folder must not leave a file in it or print a key.
func makeFirstKey(ctx context.Context, w io.Writer, o node.Options) (err error) {
	lock, err := datadir.Acquire(ctx, o.Data, datadir.LockWait)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	if _, err := os.Stat(o.Keys); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	secret, err := createKey(o.Keys, firstUser, "made by penstock up")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "API key of user %q, shown this once: %s\n", firstUser, secret)
	return err
}

// startMock serves a mock model on loopback until stop is called, which is after the
// node has stopped: its last requests are still to be answered.
func startMock(ctx context.Context) (url string, stop func(), err error) {
	behaviour := mockmodel.DefaultBehaviour()
	behaviour.Delay = mockmodel.Duration(mockDelay)
	m, err := mockmodel.New(mockmodel.Options{Behaviour: behaviour})
	if err != nil {
		return "", nil, err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, fmt.Errorf("mock model: %w", err)
	}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = m.Serve(serving, ln) // it only ends because of cancel
	}()
	return "http://" + ln.Addr().String() + "/v1", func() { cancel(); <-ended }, nil
}
