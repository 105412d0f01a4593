package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/broker/lite"
)

func newBuckets(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "buckets", Short: "List, show and purge buckets", GroupID: groupOperations, Args: cobra.NoArgs}
	cmd.AddCommand(newBucketsList(env), newBucketsShow(env), newBucketsPurge(env))
	return cmd
}

func newBucketsList(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List buckets by name", Args: cobra.NoArgs}
	addOperationFlags(cmd.Flags())
	prefix := cmd.Flags().String("prefix", "", "only names that begin so")
	limit := cmd.Flags().Int("limit", 100, "at most so many; 0 lists all")
	asJSON := addJSONFlag(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := newClient(cmd, env)
		if err != nil {
			return err
		}
		list, err := c.buckets(cmd.Context(), *prefix, *limit)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), list)
		}
		t := newTable(cmd.OutOrStdout(), "BUCKET", "USER", "MODEL", "QUEUED", "OUT", "BYTES", "HELD UNTIL", "LAST ACTIVE", "STATUS")
		for _, b := range list.Buckets {
			out, held := outAndHeld(b)
			t.row(b.Name, b.User, b.Model, number(b.Queued), number(out), number(b.Bytes), held, instant(b.LastActive), statusText(b.Status))
		}
		return t.flush()
	}
	return cmd
}

// buckets reads pages until it has limit of them, or all when limit is 0.
func (c *client) buckets(ctx context.Context, prefix string, limit int) (admin.Buckets, error) {
	all := admin.Buckets{Buckets: []admin.Bucket{}}
	for {
		page := pageOf(limit, len(all.Buckets))
		q := url.Values{"limit": {strconv.Itoa(page)}}
		if prefix != "" {
			q.Set("prefix", prefix)
		}
		if all.Next != "" {
			q.Set("after", all.Next)
		}
		var got admin.Buckets
		if err := c.get(ctx, &got, q, "topics", c.topic, "buckets"); err != nil {
			return all, err
		}
		all.Buckets = append(all.Buckets, got.Buckets...)
		if all.Next = got.Next; all.Next == "" || limit > 0 && len(all.Buckets) >= limit {
			return all, nil
		}
	}
}

// pageOf is how many to ask for next.
func pageOf(limit, have int) int {
	const page = 1000
	if limit <= 0 {
		return page
	}
	return min(page, limit-have)
}

// outAndHeld adds up the messages that are out and finds the latest hold.
func outAndHeld(b admin.Bucket) (out int, held string) {
	for _, g := range b.Groups {
		out += g.Leased
		if g.Suspend != nil {
			held = max(held, instant(g.Suspend.Until))
		}
	}
	return out, held
}

func statusText(s admin.BucketStatus) string { return strings.ReplaceAll(string(s), "_", " ") }

func newBucketsShow(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show BUCKET | --user USER --model MODEL", Short: "Show one bucket and each group's place in it",
		Args: cobra.MaximumNArgs(1),
	}
	addOperationFlags(cmd.Flags())
	name := addBucketArgument(cmd)
	asJSON := addJSONFlag(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		bucket, err := name(args)
		if err != nil {
			return err
		}
		c, err := newClient(cmd, env)
		if err != nil {
			return err
		}
		var b admin.Bucket
		if err := c.get(cmd.Context(), &b, nil, "topics", c.topic, "buckets", bucket); err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), b)
		}
		return printBucket(cmd, b)
	}
	return cmd
}

func printBucket(cmd *cobra.Command, b admin.Bucket) error {
	w := cmd.OutOrStdout()
	t := newTable(w, "BUCKET", b.Name)
	t.row("user", b.User)
	t.row("model", b.Model)
	t.row("level", "L"+number(b.Level))
	t.row("queued", number(b.Queued))
	t.row("bytes", number(b.Bytes))
	t.row("offsets", fmt.Sprintf("%d to %d", b.Head, b.Tail))
	t.row("created", instant(b.Created))
	t.row("last active", instant(b.LastActive))
	t.row("status", statusText(b.Status))
	if err := t.flush(); err != nil {
		return err
	}
	if len(b.Groups) == 0 {
		_, err := fmt.Fprintln(w, "\nEvery group has read all of it.")
		return err
	}
	fmt.Fprintln(w)
	t = newTable(w, "GROUP", "FLOOR", "QUEUED", "OUT", "RETURNED", "HELD UNTIL", "BY", "WHY")
	for _, g := range b.Groups {
		s := admin.Suspend{}
		if g.Suspend != nil {
			s = *g.Suspend
		}
		t.row(g.Group, number(g.Floor), number(g.Queued), number(g.Leased), number(g.Returned), instant(s.Until), s.By, s.Reason)
	}
	return t.flush()
}

func newBucketsPurge(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "purge BUCKET | --user USER --model MODEL", Short: "Settle all queued messages of a bucket in every group",
		Long: "Settle all queued messages of a bucket in every group: they will not be delivered.\n" +
			"Messages that are out stay with their consumers.",
		Args: cobra.MaximumNArgs(1),
	}
	addOperationFlags(cmd.Flags())
	name := addBucketArgument(cmd)
	asJSON := addJSONFlag(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		bucket, err := name(args)
		if err != nil {
			return err
		}
		c, err := newClient(cmd, env)
		if err != nil {
			return err
		}
		var got admin.Purged
		if err := c.do(cmd.Context(), http.MethodPost, nil, nil, &got, "topics", c.topic, "buckets", bucket, "purge"); err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), got)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d purged\n", got.Purged)
		return err
	}
	return cmd
}

// addBucketArgument lets a bucket be named by its lite topic or by its cell.
func addBucketArgument(cmd *cobra.Command) func(args []string) (string, error) {
	user := cmd.Flags().String("user", "", "name the bucket by its user, with --model")
	model := cmd.Flags().String("model", "", "name the bucket by its model, with --user")
	return func(args []string) (string, error) {
		byCell := *user != "" || *model != ""
		switch {
		case len(args) == 1 && !byCell && strings.TrimSpace(args[0]) != "":
			return args[0], nil
		case len(args) == 0 && *user != "" && *model != "":
			name, err := lite.Encode(lite.Cell{User: *user, Model: *model})
			if err != nil {
				return "", fmt.Errorf("%w: %w", errUsage, err)
			}
			return name, nil
		}
		return "", fmt.Errorf("%w: want a bucket, or --user and --model", errUsage)
	}
}
