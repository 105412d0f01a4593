package main

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// errUsage is wrapped by errors of the command line itself.
var errUsage = errors.New("usage")

// newRoot builds the whole command tree. Commands share nothing but env.
func newRoot(env environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "penstock",
		Short: "Durable buckets in front of scarce backends",
		Long: "Penstock catches the bursts of very many users in durable queues, one for each user and model,\n" +
			"and lets them into a scarce backend at the pace each user, each model and the backend allow.",
		SilenceUsage:  true,
		SilenceErrors: true, // run prints them
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w: %w (see %s --help)", errUsage, err, cmd.CommandPath())
	})
	root.AddGroup(
		&cobra.Group{ID: groupServers, Title: "Servers:"},
		&cobra.Group{ID: groupOperations, Title: "Operations, over the admin API:"},
		&cobra.Group{ID: groupTools, Title: "Tools:"},
	)
	root.AddCommand(
		newUp(env), newBroker(env), newGateway(env), newConsumer(env), newMockModel(env),
		newBuckets(env), newGroups(env), newSuspends(env), newDLQ(env), newPolicy(env), newExplain(env), newRecord(env),
		newDemo(env), newBench(env), newKeys(env), newStore(env), newConfig(env), newVersion(),
	)
	root.SetHelpCommandGroupID(groupTools)
	root.SetCompletionCommandGroupID(groupTools)
	helpForGroups(root)
	wrapArgErrors(root)
	return root
}

// The sections of the help.
const (
	groupServers    = "servers"
	groupOperations = "operations"
	groupTools      = "tools"
)

// helpForGroups makes commands that only hold others runnable: they show their help. One that is not runnable shows it
// for a misspelt subcommand as well, and exits with 0.
func helpForGroups(cmd *cobra.Command) {
	if !cmd.Runnable() {
		cmd.DisableFlagsInUseLine = true
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	for _, c := range cmd.Commands() {
		helpForGroups(c)
	}
}

// wrapArgErrors makes a wrong number of arguments a usage error, in every command.
func wrapArgErrors(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return fmt.Errorf("%w: %w (see %s --help)", errUsage, err, cmd.CommandPath())
			}
			return nil
		}
	}
	for _, c := range cmd.Commands() {
		wrapArgErrors(c)
	}
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", GroupID: groupTools, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "penstock %s\n", buildVersion())
			return err
		},
	}
}

// buildVersion is what the linker was told, or what `go install` recorded.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
