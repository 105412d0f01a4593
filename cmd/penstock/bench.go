package main

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstockmq/penstock/cmd/bench"
)

func newBench(environment) *cobra.Command {
	cmd := &cobra.Command{Use: "bench", Short: "Measure scenarios", GroupID: groupTools, Args: cobra.NoArgs}
	cmd.AddCommand(newBenchIsolation(), newBenchBuckets())
	return cmd
}

func newBenchIsolation() *cobra.Command {
	cmd := &cobra.Command{
		Use: "isolation", Short: "Show what throttled buckets cost the others: suspends against sleeping workers", Args: cobra.NoArgs,
		Long: "50 buckets, 50 workers, 300 ms a message: none, 5, then 40 of the buckets are throttled, once by\n" +
			"suspending them and once by workers that sleep. The table has the rate of the healthy buckets.",
	}
	fs := cmd.Flags()
	duration := fs.Duration("duration", 10*time.Second, "measured time of each run")
	buckets := fs.Int("buckets", 50, "buckets")
	workers := fs.Int("workers", 50, "workers")
	service := fs.Duration("service", 300*time.Millisecond, "time of one message")
	throttled := fs.IntSlice("throttled", []int{0, 5, 40}, "numbers of throttled buckets to try")
	asJSON := addJSONFlag(fs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		result, err := bench.RunIsolation(cmd.Context(), bench.IsolationOptions{
			Duration: *duration, Buckets: *buckets, Workers: *workers, Service: *service, Throttled: *throttled,
		})
		if err != nil {
			return err
		}
		return printResult(cmd.OutOrStdout(), *asJSON, result)
	}
	return cmd
}

func newBenchBuckets() *cobra.Command {
	cmd := &cobra.Command{
		Use: "buckets", Short: "Show what very many buckets cost: their first messages, a backlog in each, a restart", Args: cobra.NoArgs,
		Long: "Every bucket gets its first message while wildcard consumers wait, then one before they start;\n" +
			"the broker is restarted with the backlog, and again when all is drained. The table has the rates,\n" +
			"what came twice or never, and the time and memory of a start.",
	}
	fs := cmd.Flags()
	count := fs.Int("count", 100_000, "buckets")
	consumers := fs.Int("consumers", 16, "wildcard consumers, with a connection each")
	body := fs.Int("body", 1024, "bytes of a message")
	limit := fs.Duration("limit", 10*time.Minute, "bound of each phase; what has not come by then is missing")
	skipFresh := fs.Bool("skip-fresh", false, "leave out the phase in which consumers wait for new buckets")
	asJSON := addJSONFlag(fs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		result, err := bench.RunBuckets(cmd.Context(), bench.BucketsOptions{
			Count: *count, Consumers: *consumers, BodyBytes: *body, Limit: *limit, SkipFresh: *skipFresh,
		})
		if err != nil {
			return err
		}
		return printResult(cmd.OutOrStdout(), *asJSON, result)
	}
	return cmd
}

// printResult prints what a scenario measured, as a table or as JSON.
func printResult(w io.Writer, asJSON bool, result interface{ Print(w io.Writer) error }) error {
	if asJSON {
		return printJSON(w, result)
	}
	return result.Print(w)
}
