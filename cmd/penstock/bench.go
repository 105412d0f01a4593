package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstockmq/penstock/cmd/bench"
)

func newBench(environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "bench", Short: "Measure scenarios", GroupID: groupTools, Args: cobra.NoArgs,
		Long: "Measure scenarios. Each starts what it needs on loopback, loads it for a bounded time, prints figures\n" +
			"and what they have to show, and exits with 1 when they do not show it. --json prints one line.",
	}
	cmd.AddCommand(
		newBenchIsolation(), newBenchBuckets(), newBenchPace(), newBenchLevels(), newBenchFairness(), newBenchRatio(), newBenchTurns(),
	)
	return cmd
}

// scenario is what a run of a scenario gives.
type scenario interface {
	Print(w io.Writer) error
	// Err is why the figures do not show what they should.
	Err() error
}

// runScenario makes a command run a scenario and print it.
func runScenario(cmd *cobra.Command, run func(cmd *cobra.Command) (scenario, error)) *cobra.Command {
	asJSON := addJSONFlag(cmd.Flags())
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		result, err := run(cmd)
		if err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		if *asJSON {
			if err := json.NewEncoder(w).Encode(result); err != nil {
				return fmt.Errorf("print: %w", err)
			}
		} else if err := result.Print(w); err != nil {
			return err
		}
		return result.Err()
	}
	return cmd
}

func newBenchIsolation() *cobra.Command {
	cmd := &cobra.Command{
		Use: "isolation", Short: "Show what throttled buckets cost the others: suspends against sleeping workers",
		Long: "50 buckets, 50 workers, 300 ms a message: none, 5, then 40 of the buckets are throttled, once by\n" +
			"suspending them and once by workers that sleep. The table has the rate of the healthy buckets.",
	}
	fs := cmd.Flags()
	var o bench.IsolationOptions
	fs.DurationVar(&o.Duration, "duration", 10*time.Second, "measured time of each run")
	fs.IntVar(&o.Buckets, "buckets", 50, "buckets")
	fs.IntVar(&o.Workers, "workers", 50, "workers")
	fs.DurationVar(&o.Service, "service", 300*time.Millisecond, "time of one message")
	fs.IntSliceVar(&o.Throttled, "throttled", []int{0, 5, 40}, "numbers of throttled buckets to try")
	return runScenario(cmd, func(cmd *cobra.Command) (scenario, error) { return bench.RunIsolation(cmd.Context(), o) })
}

func newBenchBuckets() *cobra.Command {
	cmd := &cobra.Command{
		Use: "buckets", Short: "Show what very many buckets cost: their first messages, a backlog in each, a restart",
		Long: "Every bucket gets its first message while wildcard consumers wait, then one before they start;\n" +
			"the broker is restarted with the backlog, and again when all is drained. The table has the rates,\n" +
			"what came twice or never, and the time and memory of a start.",
	}
	fs := cmd.Flags()
	var o bench.BucketsOptions
	fs.IntVar(&o.Count, "count", 100_000, "buckets")
	fs.IntVar(&o.Consumers, "consumers", 16, "wildcard consumers, with a connection each")
	fs.IntVar(&o.BodyBytes, "body", 1024, "bytes of a message")
	fs.DurationVar(&o.Limit, "limit", 10*time.Minute, "bound of each phase; what has not come by then is missing")
	fs.BoolVar(&o.SkipFresh, "skip-fresh", false, "leave out the phase in which consumers wait for new buckets")
	return runScenario(cmd, func(cmd *cobra.Command) (scenario, error) { return bench.RunBuckets(cmd.Context(), o) })
}

func newBenchPace() *cobra.Command {
	cmd := &cobra.Command{
		Use: "pace", Short: "Show how exactly limits are kept: rates, debts, tokens",
		Long: "A cell at 50/s is read by one consumer and by four; eight writers press on a cell at 10/s; on virtual\n" +
			"time a burst of 560 is paid off at 5/s, and calls of unknown length meet a limit of 100 tokens a minute.",
	}
	var o bench.PaceOptions
	cmd.Flags().DurationVar(&o.Duration, "duration", 10*time.Second, "measured time of each run")
	return runScenario(cmd, func(cmd *cobra.Command) (scenario, error) { return bench.RunPace(cmd.Context(), o) })
}

func newBenchLevels() *cobra.Command {
	cmd := &cobra.Command{
		Use: "levels", Short: "Show who gives way when a model's capacity is halved for a while",
		Long: "Four users, one of each level of importance, send the same; the capacity of their model is halved\n" +
			"after the first phase and returns after the second. The table has what each level got. A phase takes\n" +
			"5s to 10m.",
	}
	fs := cmd.Flags()
	var o bench.LevelsOptions
	fs.DurationVar(&o.Before, "before", 10*time.Second, "time until the capacity is halved")
	fs.DurationVar(&o.Short, "short", 20*time.Second, "time until it returns")
	fs.DurationVar(&o.After, "after", 15*time.Second, "time after that")
	fs.IntVar(&o.Demand, "demand", 40, "messages a second of each level")
	fs.IntVar(&o.Capacity, "capacity", 240, "messages a second that the model takes")
	return runScenario(cmd, func(cmd *cobra.Command) (scenario, error) { return bench.RunLevels(cmd.Context(), o) })
}

func newBenchFairness() *cobra.Command {
	cmd := &cobra.Command{
		Use: "fairness", Short: "Show what a tenant with a huge backlog costs quiet ones, and how evenly cost is shared",
		Long: "99 tenants send 10/s each, alone and beside one with 100,000 queued; then five tenants with a backlog\n" +
			"of messages of unequal cost share a model.",
	}
	fs := cmd.Flags()
	var o bench.FairnessOptions
	fs.DurationVar(&o.Duration, "duration", 11*time.Second, "measured time of each run")
	fs.IntVar(&o.Runs, "runs", 3, "runs of each variant; the median counts")
	fs.IntVar(&o.Backlog, "backlog", 100_000, "messages that the heavy tenant has queued")
	fs.IntVar(&o.Quiet, "quiet", 99, "quiet tenants")
	fs.IntVar(&o.QuietRate, "quiet-rate", 10, "messages a second of each quiet tenant")
	return runScenario(cmd, func(cmd *cobra.Command) (scenario, error) { return bench.RunFairness(cmd.Context(), o) })
}

func newBenchTurns() *cobra.Command {
	cmd := &cobra.Command{
		Use: "turns", Short: "Show that no turn of an owner loop is long when very many events are due at one instant",
		Long: "The deadlines of one bucket pass together, then the windows of a million cells end together; the clock\n" +
			"of the broker is set ahead for that. The table has the longest turn, during which other events wait.",
	}
	fs := cmd.Flags()
	var o bench.TurnsOptions
	fs.IntVar(&o.Cells, "cells", 1_000_000, "cells whose windows end together")
	fs.IntVar(&o.Deadlines, "deadlines", 100_000, "messages of one bucket whose deadlines pass together")
	fs.IntVar(&o.Runs, "runs", 3, "runs of each kind; the best counts")
	fs.DurationVar(&o.Limit, "limit", 20*time.Minute, "time limit of the whole scenario")
	return runScenario(cmd, func(cmd *cobra.Command) (scenario, error) { return bench.RunTurns(cmd.Context(), o) })
}

func newBenchRatio() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ratio", Short: "Show how many requests a limiter answers 429 that buckets let wait, and what the wait is",
		Long: "The same bursts go over HTTP to a gateway that refuses what is over the limit and to one that queues it.",
	}
	fs := cmd.Flags()
	var o bench.RatioOptions
	fs.IntVar(&o.Users, "users", 10, "users")
	fs.IntVar(&o.Bursts, "bursts", 4, "bursts of each user")
	fs.IntVar(&o.Size, "size", 30, "requests of a burst")
	fs.DurationVar(&o.Every, "every", 5*time.Second, "time from a burst to the next one")
	fs.IntVar(&o.Rate, "rate", 10, "requests a second that each user may have")
	return runScenario(cmd, func(cmd *cobra.Command) (scenario, error) { return bench.RunRatio(cmd.Context(), o) })
}
