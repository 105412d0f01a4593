package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/penstockmq/penstock/cmd/bench"
)

func newDemo(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "demo", Short: "Run everything against a mock model with a burst of tenants, show a summary", GroupID: groupTools, Args: cobra.NoArgs,
		Long: "Run everything in one process against a mock model that takes 50 ms. Twelve users burst 40 requests\n" +
			"at once to one of three models and send one every two seconds to the others; a policy lets 5/s of a\n" +
			"user and model through, with one exception at 1/s and one user at 20/s. Exit code 1 when a request is\n" +
			"lost, refused or answered twice, or a pace is missed. It listens on free ports and keeps nothing; of the\n" +
			"flags of servers only those of logs are used.",
	}
	fs := cmd.Flags()
	addServerFlags(fs, upDefaults())
	duration := fs.Duration("duration", 12*time.Second, "how long users send; what is queued then is waited for")
	asJSON := fs.Bool(keyJSON, false, "print the summary as one JSON object on the last line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := load(fs, env, upDefaults())
		if err != nil {
			return err
		}
		if !fs.Changed(keyLogLevel) && env[envName(keyLogLevel)] == "" {
			s.LogLevel = "warn" // the table is the news
		}
		log, err := newLogger(s, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		out, isFile := cmd.OutOrStdout().(*os.File)
		return bench.Demo(cmd.Context(), bench.DemoOptions{
			Duration: *duration, JSON: *asJSON, Out: cmd.OutOrStdout(), Logger: log,
			Terminal: isFile && term.IsTerminal(int(out.Fd())),
		})
	}
	return cmd
}
