package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"
)

// operate makes cmd ask the admin API and print the answer: as text, or with --json as it came.
func operate[T any](cmd *cobra.Command, env environment, ask func(ctx context.Context, c *client, args []string) (T, error), show func(w io.Writer, answer T) error) {
	addOperationFlags(cmd.Flags())
	asJSON := addJSONFlag(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := newClient(cmd, env)
		if err != nil {
			return err
		}
		answer, err := ask(cmd.Context(), c, args)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), answer)
		}
		return show(safeWriter{cmd.OutOrStdout()}, answer)
	}
}

// operator is who runs the command, for those who list what was done.
func operator(env environment) string {
	for _, name := range []string{"USER", "LOGNAME", "USERNAME"} {
		if env[name] != "" {
			return env[name]
		}
	}
	return "operator"
}
