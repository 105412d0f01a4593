package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/penstockmq/penstock/broker/admin"
)

func newDLQ(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "dlq", Short: "List and redrive dead letters", GroupID: groupOperations, Args: cobra.NoArgs}
	cmd.AddCommand(newDLQList(env), newDLQRedrive(env))
	return cmd
}

func newDLQList(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List dead letters of a group, the oldest first", Args: cobra.NoArgs}
	addOperationFlags(cmd.Flags())
	limit := cmd.Flags().Int("limit", 100, "at most so many; 0 lists all")
	after := cmd.Flags().Uint64("after", 0, "only sequences after this one")
	asJSON := addJSONFlag(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := newClient(cmd, env)
		if err != nil {
			return err
		}
		list, err := c.deadLetters(cmd.Context(), *after, *limit)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), list)
		}
		t := newTable(cmd.OutOrStdout(), "SEQUENCE", "BUCKET", "MESSAGE", "ATTEMPTS", "BYTES", "AT", "WHY")
		for _, d := range list.DeadLetters {
			t.row(number(d.Sequence), d.Bucket, d.MessageID, number(d.Attempts), number(d.BodyBytes), instant(d.At), d.Reason)
		}
		return t.flush()
	}
	return cmd
}

// deadLetters reads pages until it has limit of them, or all when limit is 0.
func (c *client) deadLetters(ctx context.Context, after uint64, limit int) (admin.DeadLetters, error) {
	all := admin.DeadLetters{DeadLetters: []admin.DeadLetter{}, Next: after}
	for {
		q := url.Values{"limit": {strconv.Itoa(pageOf(limit, len(all.DeadLetters)))}}
		if all.Next != 0 {
			q.Set("after", strconv.FormatUint(all.Next, 10))
		}
		var got admin.DeadLetters
		if err := c.get(ctx, &got, q, "groups", c.group, "dead-letters"); err != nil {
			return all, err
		}
		all.DeadLetters = append(all.DeadLetters, got.DeadLetters...)
		if all.Next = got.Next; all.Next == 0 || limit > 0 && len(all.DeadLetters) >= limit {
			return all, nil
		}
	}
}

func newDLQRedrive(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "redrive {SEQUENCE... | --all}", Short: "Send dead letters to their buckets again",
		Long: "Send dead letters to their buckets again, each in one step with its removal from the list.\n" +
			"Their attempts start anew, and a deadline they had is taken off.",
	}
	addOperationFlags(cmd.Flags())
	all := cmd.Flags().Bool("all", false, "all that are there now")
	asJSON := addJSONFlag(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if (len(args) == 0) != *all {
			return fmt.Errorf("%w: want sequences, or --all", errUsage)
		}
		seqs, err := sequences(args)
		if err != nil {
			return err
		}
		c, err := newClient(cmd, env)
		if err != nil {
			return err
		}
		if *all {
			// Listed first and in whole: one that fails again while this goes on must not
			// be sent round in circles.
			list, err := c.deadLetters(cmd.Context(), 0, 0)
			if err != nil {
				return err
			}
			for _, d := range list.DeadLetters {
				seqs = append(seqs, d.Sequence)
			}
		}
		total, err := c.redrive(cmd.Context(), seqs)
		if err != nil {
			return fmt.Errorf("after %d were redriven: %w", total.Redriven, err)
		}
		if total.Unreadable > 0 {
			return fmt.Errorf("%d redriven; %d stay because their records are damaged, see penstock dlq list", total.Redriven, total.Unreadable)
		}
		if missing := len(seqs) - total.Redriven; missing > 0 && !*all {
			return fmt.Errorf("%d redriven; of the sequences given %d are not among the dead letters of %q", total.Redriven, missing, c.group)
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), total)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d redriven\n", total.Redriven)
		return err
	}
	return cmd
}

func sequences(args []string) ([]uint64, error) {
	seqs := make([]uint64, 0, len(args))
	for _, a := range args {
		n, err := strconv.ParseUint(a, 10, 63)
		if err != nil {
			return nil, fmt.Errorf("%w: %q is no sequence", errUsage, a)
		}
		seqs = append(seqs, n)
	}
	return seqs, nil
}

// redrive sends them in portions: each waits for the disk.
func (c *client) redrive(ctx context.Context, seqs []uint64) (admin.Redriven, error) {
	const portion = 100
	var total admin.Redriven
	for len(seqs) > 0 {
		n := min(portion, len(seqs))
		var got admin.Redriven
		err := c.do(ctx, http.MethodPost, nil, admin.Redrive{Sequences: seqs[:n]}, &got, "groups", c.group, "dead-letters", "redrive")
		if err != nil {
			return total, err
		}
		total.Redriven += got.Redriven
		total.Unreadable += got.Unreadable
		seqs = seqs[n:]
	}
	return total, nil
}
