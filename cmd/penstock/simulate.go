package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstockmq/penstock/cmd/sim"
)

func newPolicySimulate() *cobra.Command {
	cmd := &cobra.Command{
		Use: "simulate --policy FILE {--trace FILE | --users N ...}", Short: "Run a policy over a trace on virtual time",
		Long: "Run the broker's own state machine over recorded or generated arrivals, on virtual time, and print\n" +
			"waits, limited answers, utilisation and fairness. A trace is JSON lines:\n" +
			`  {"time": 0.25, "user": "alice", "model": "m", "cost": 1, "service_time": "300ms"}` + "\n" +
			"with time in RFC 3339 or seconds; penstock record writes one. No server is asked.",
		Args: cobra.NoArgs, DisableFlagsInUseLine: true,
	}
	fs := cmd.Flags()
	policyFile := fs.String("policy", "", "policy `file` or directory")
	traceFile := fs.String("trace", "", "trace `file`, - for standard input; without it a trace is generated")
	write := fs.String("write-trace", "", "also write the trace that was run to this `file`")
	compare := fs.Bool("limiter", false, "run it against a limiter that answers 429 instead of buckets")
	var o sim.Options
	fs.IntVar(&o.Workers, "workers", 64, "requests that the pool runs at once")
	fs.IntVar(&o.InFlight, "in-flight", 1, "requests of one bucket that run at once where the policy does not say")
	var l sim.Load
	fs.IntVar(&l.Users, "users", 10, "generated: users")
	fs.IntVar(&l.Models, "models", 1, "generated: models that each user sends to")
	fs.Float64Var(&l.Rate, "rate", 1, "generated: requests a second of each user to each model")
	fs.IntVar(&l.Burst, "burst", 1, "generated: requests that come at once")
	fs.DurationVar(&l.For, "for", time.Minute, "generated: length of the trace")
	fs.DurationVar(&l.Service, "service", 300*time.Millisecond, "generated: mean service time")
	fs.Int64Var(&l.Tokens, "tokens", 0, "generated: mean tokens of input and of output each")
	fs.Uint64Var(&l.Seed, "seed", 1, "generated: another seed is another trace")
	asJSON := addJSONFlag(fs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *policyFile == "" {
			return fmt.Errorf("%w: --policy is missing", errUsage)
		}
		doc, err := readPolicy(*policyFile)
		if err != nil {
			return err
		}
		trace, err := readTrace(cmd, *traceFile, l)
		if err != nil {
			return err
		}
		if *write != "" {
			if err := writeTrace(*write, trace); err != nil {
				return err
			}
		}
		o.Policy = doc
		run := sim.Run
		if *compare {
			run = sim.RunLimiter
		}
		result, err := run(cmd.Context(), trace, o)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), result)
		}
		return result.Print(safeWriter{cmd.OutOrStdout()})
	}
	return cmd
}

func readTrace(cmd *cobra.Command, path string, l sim.Load) ([]sim.Request, error) {
	switch path {
	case "":
		return sim.Generate(l)
	case "-":
		return sim.ReadTrace(cmd.InOrStdin())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read from
	trace, err := sim.ReadTrace(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return trace, nil
}

func writeTrace(path string, trace []sim.Request) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	defer func() {
		if e := f.Close(); err == nil && e != nil {
			err = fmt.Errorf("write trace: %w", e)
		}
	}()
	return sim.WriteTrace(f, trace)
}
