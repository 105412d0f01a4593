package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend/quota"
)

func newExplain(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "explain {--bucket USER/MODEL | --request ID}", Short: "Show why a request waits, since when and until when", GroupID: groupOperations,
		Long: "Show where the next message of a bucket, or the message of a request, stands: its state and position,\n" +
			"the gate it waits at, since when and until when, what opens it, and the limits that apply with what is\n" +
			"used of them now. A bucket is a user and a model with a slash between them, or the name of a lite topic.",
		Args: cobra.NoArgs, DisableFlagsInUseLine: true,
	}
	bucket := cmd.Flags().String("bucket", "", "`USER/MODEL`, or the name of a lite topic")
	request := cmd.Flags().String("request", "", "`id` of a request, as the gateway gave it")
	operate(cmd, env, func(ctx context.Context, c *client, _ []string) (got admin.Explanation, err error) {
		if (*bucket == "") == (*request == "") {
			return got, fmt.Errorf("%w: want exactly one of --bucket and --request", errUsage)
		}
		q := url.Values{"topic": {c.topic}, "group": {c.group}}
		if *request != "" {
			q.Set("request", *request)
			return got, c.get(ctx, &got, q, "explain")
		}
		name, err := bucketName(*bucket)
		if err != nil {
			return got, err
		}
		q.Set("bucket", name)
		return got, c.get(ctx, &got, q, "explain")
	}, printExplanation)
	return cmd
}

// bucketName turns USER/MODEL into the name of its bucket. A model may have slashes, a user may not here; a text without
// one is a name already.
func bucketName(text string) (string, error) {
	user, model, ok := strings.Cut(text, "/")
	if !ok {
		return text, nil
	}
	name, err := lite.Encode(lite.Cell{User: user, Model: model})
	if err != nil {
		return "", fmt.Errorf("%w: bucket: %w", errUsage, err)
	}
	return name, nil
}

func printExplanation(w io.Writer, e admin.Explanation) error {
	t := newTable(w, "BUCKET", e.Bucket)
	t.row("user", e.User)
	t.row("model", e.Model)
	t.row("level", "L"+number(e.Level))
	if e.RequestID != "" {
		t.row("request", e.RequestID)
	}
	t.row("state", strings.ReplaceAll(e.State, "_", " "))
	if e.Offset != nil {
		t.row("position", number(e.Position))
	}
	switch {
	case e.Gate != nil:
		t.row("waits at", fmt.Sprintf("%s of %s", e.Gate.Limit, targetText(e.Gate.Scope, e.Gate.Name)))
	case e.Suspend != nil:
		t.row("waits at", "suspend of "+targetText(e.Suspend.Scope, e.Suspend.Name))
		t.row("by", e.Suspend.By)
		t.row("why", e.Suspend.Reason)
	}
	t.row("since", instant(e.Since))
	t.row("until", instant(e.Until))
	t.row("opens", e.Opens)
	t.row("estimated start", instant(e.EstimatedStart))
	if e.PolicyNotice != "" {
		t.row("policy", e.PolicyNotice)
	}
	if err := t.flush(); err != nil || len(e.Limits) == 0 {
		return err
	}
	fmt.Fprintln(w)
	return printLines(w, e.Limits)
}

func printLines(w io.Writer, lines []quota.Line) error {
	t := newTable(w, "SCOPE", "NAME", "LIMIT", "VALUE", "USED", "OF", "STATE", "FROM")
	for _, l := range lines {
		t.row(l.Scope, l.Name, l.Limit, l.Value, number(l.Used), number(l.Max), lineState(l), l.From)
	}
	return t.flush()
}

func lineState(l quota.Line) string {
	state := "open"
	if !l.Open {
		state = "closed"
		if !l.Opens.IsZero() {
			state += " until " + instant(l.Opens)
		}
	}
	if l.Factor > 0 && l.Factor < 1000 {
		state += fmt.Sprintf(", scaled to %.1f %%", float64(l.Factor)/10)
	}
	if l.Stale {
		state += ", signal is stale"
	}
	if l.Shadow {
		state = fmt.Sprintf("shadow, would have held %d", l.WouldHold)
	}
	return state
}
