package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/suspend"
)

func newSuspends(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "suspends", Short: "List, set and lift suspends", GroupID: groupOperations, Args: cobra.NoArgs}
	cmd.AddCommand(newSuspendsList(env), newSuspendsSet(env), newSuspendsLift(env))
	return cmd
}

func newSuspendsList(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List suspends in force, the soonest to end first", Args: cobra.NoArgs}
	addOperationFlags(cmd.Flags())
	scope := cmd.Flags().String("scope", "", "only of this scope: bucket, row, column, level or all")
	prefix := cmd.Flags().String("prefix", "", "only names that begin so")
	limit := cmd.Flags().Int("limit", 100, "at most so many, 1 to 1000")
	asJSON := addJSONFlag(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := newClient(cmd, env)
		if err != nil {
			return err
		}
		q := url.Values{"limit": {strconv.Itoa(*limit)}}
		for key, value := range map[string]string{"scope": *scope, "prefix": *prefix} {
			if value != "" {
				q.Set(key, value)
			}
		}
		var list admin.Suspends
		if err := c.get(cmd.Context(), &list, q, "groups", c.group, "suspends"); err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), list)
		}
		t := newTable(cmd.OutOrStdout(), "SCOPE", "NAME", "UNTIL", "BY", "WHY")
		for _, s := range list.Suspends {
			t.row(s.Scope, s.Name, instant(s.Until), s.By, s.Reason)
		}
		if err := t.flush(); err != nil {
			return err
		}
		if list.Truncated {
			fmt.Fprintln(cmd.ErrOrStderr(), "there are more: narrow the list with --prefix or --scope, or raise --limit")
		}
		return nil
	}
	return cmd
}

func newSuspendsSet(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "set {BUCKET | --user USER --model MODEL} {--for DURATION | --until INSTANT}", Short: "Hold a bucket until an instant, exactly",
		Long: "Hold a bucket until an instant, exactly: a hold in force may become longer or shorter.\n" +
			"The bucket need not exist yet.",
		Args: cobra.MaximumNArgs(1),
	}
	addOperationFlags(cmd.Flags())
	name := addBucketArgument(cmd)
	forD := cmd.Flags().Duration("for", 0, "hold it for so long from now")
	until := cmd.Flags().String("until", "", "hold it until this `instant`, RFC 3339")
	reason := cmd.Flags().String("reason", "", "why, for those who list")
	asJSON := addJSONFlag(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		bucket, err := name(args)
		if err != nil {
			return err
		}
		body := admin.SetSuspend{Scope: suspend.Bucket.String(), Name: bucket, Reason: *reason}
		if cmd.Flags().Changed("for") {
			d := admin.Duration(*forD)
			body.Duration = &d
		}
		if *until != "" {
			if body.Until, err = time.Parse(time.RFC3339, *until); err != nil {
				return fmt.Errorf("%w: until: %q: want an instant such as 2026-01-02T15:04:05Z", errUsage, *until)
			}
			if !body.Until.After(time.Now()) {
				return fmt.Errorf("%w: until: %s has passed; suspends lift ends a hold", errUsage, *until)
			}
		}
		if (body.Duration == nil) == body.Until.IsZero() {
			return fmt.Errorf("%w: want exactly one of --for and --until", errUsage)
		}
		c, err := newClient(cmd, env)
		if err != nil {
			return err
		}
		var got admin.Suspend
		if err := c.do(cmd.Context(), http.MethodPut, nil, body, &got, "groups", c.group, "suspends"); err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), got)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s is held until %s\n", got.Scope, got.Name, instant(got.Until))
		return err
	}
	return cmd
}

func newSuspendsLift(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "lift BUCKET | --user USER --model MODEL", Short: "End the hold of a bucket now", Args: cobra.MaximumNArgs(1),
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
		q := url.Values{"scope": {suspend.Bucket.String()}, "name": {bucket}}
		var got admin.Lifted
		if err := c.do(cmd.Context(), http.MethodDelete, q, nil, &got, "groups", c.group, "suspends"); err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), got)
		}
		text := "lifted"
		if !got.Lifted {
			text = "was not held"
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", bucket, text)
		return err
	}
	return cmd
}
