package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/broker/lite"
	"github.com/penstockmq/penstock/suspend"
)

func newSuspends(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "suspends", Short: "List, set and lift suspends", GroupID: groupOperations, Args: cobra.NoArgs}
	cmd.AddCommand(newSuspendsList(env), newSuspendsSet(env), newSuspendsLift(env))
	return cmd
}

func newSuspendsList(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List suspends in force, the soonest to end first", Args: cobra.NoArgs}
	scope := cmd.Flags().String("scope", "", "only of this scope: bucket, row, column, level or all")
	prefix := cmd.Flags().String("prefix", "", "only names that begin so")
	limit := cmd.Flags().Int("limit", 100, "at most so many, 1 to 1000")
	operate(cmd, env, func(ctx context.Context, c *client, _ []string) (list admin.Suspends, err error) {
		q := url.Values{"limit": {strconv.Itoa(*limit)}}
		for key, value := range map[string]string{"scope": *scope, "prefix": *prefix} {
			if value != "" {
				q.Set(key, value)
			}
		}
		return list, c.get(ctx, &list, q, "groups", c.group, "suspends")
	}, func(w io.Writer, list admin.Suspends) error {
		t := newTable(w, "SCOPE", "NAME", "UNTIL", "BY", "WHY")
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
	})
	return cmd
}

const targetUsage = "{BUCKET | --user USER --model MODEL | --user USER | --model MODEL | --level 0..3 | --all}"

// addTargetFlags lets a command name what a hold covers: a bucket by its name or cell, a row, a column, a level, or all.
func addTargetFlags(cmd *cobra.Command) func(args []string) (suspend.Target, error) {
	fs := cmd.Flags()
	user := fs.String("user", "", "all buckets of this user; with --model, the bucket of the two")
	model := fs.String("model", "", "all buckets of this model; with --user, the bucket of the two")
	level := fs.String("level", "", "all buckets of this level of importance, 0 to 3")
	all := fs.Bool("all", false, "every bucket of the group")
	return func(args []string) (suspend.Target, error) {
		var found []suspend.Target
		if len(args) == 1 {
			found = append(found, suspend.Target{Scope: suspend.Bucket, Name: args[0]})
		}
		switch {
		case *user != "" && *model != "":
			name, err := lite.Encode(lite.Cell{User: *user, Model: *model})
			if err != nil {
				return suspend.Target{}, fmt.Errorf("%w: %w", errUsage, err)
			}
			found = append(found, suspend.Target{Scope: suspend.Bucket, Name: name})
		case *user != "":
			found = append(found, suspend.Target{Scope: suspend.Row, Name: *user})
		case *model != "":
			found = append(found, suspend.Target{Scope: suspend.Column, Name: *model})
		}
		if *level != "" {
			found = append(found, suspend.Target{Scope: suspend.Level, Name: *level})
		}
		if *all {
			found = append(found, suspend.Target{Scope: suspend.All})
		}
		if len(found) != 1 {
			return suspend.Target{}, fmt.Errorf("%w: want exactly one of a bucket, --user, --model, --level and --all (--user with --model is one)", errUsage)
		}
		if err := found[0].Validate(); err != nil {
			return suspend.Target{}, fmt.Errorf("%w: %w", errUsage, err)
		}
		return found[0], nil
	}
}

func newSuspendsSet(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "set " + targetUsage + " {--for DURATION | --until INSTANT}", Short: "Hold a bucket, row, column, level or all until an instant, exactly",
		Long: "Hold a bucket, a user's row, a model's column, a level of importance or everything until an instant,\n" +
			"exactly: a hold in force may become longer or shorter. Holds of other scopes stay as they are. What is\n" +
			"held need not exist yet.",
		Example: "  penstock suspends set --model gpt-4o --for 10m --reason \"GPU maintenance\"\n" +
			"  penstock suspends set --level 3 --until 2026-01-02T06:00:00Z",
		Args:                  cobra.MaximumNArgs(1),
		DisableFlagsInUseLine: true,
	}
	target := addTargetFlags(cmd)
	forD := cmd.Flags().Duration("for", 0, "hold it for so long from now")
	until := cmd.Flags().String("until", "", "hold it until this `instant`, RFC 3339")
	reason := cmd.Flags().String("reason", "", "why, for those who list")
	by := cmd.Flags().String("by", "", "who, for those who list (default the user who runs the command)")
	operate(cmd, env, func(ctx context.Context, c *client, args []string) (got admin.Suspend, err error) {
		t, err := target(args)
		if err != nil {
			return got, err
		}
		body := admin.SetSuspend{Scope: t.Scope.String(), Name: t.Name, Reason: *reason, By: *by}
		if body.By == "" {
			body.By = operator(env)
		}
		if cmd.Flags().Changed("for") {
			d := admin.Duration(*forD)
			body.Duration = &d
		}
		if body.Until, err = untilFlag(*until); err != nil {
			return got, err
		}
		if (body.Duration == nil) == body.Until.IsZero() {
			return got, fmt.Errorf("%w: want exactly one of --for and --until", errUsage)
		}
		return got, c.do(ctx, http.MethodPut, nil, body, &got, "groups", c.group, "suspends")
	}, func(w io.Writer, got admin.Suspend) error {
		_, err := fmt.Fprintf(w, "%s is held until %s\n", targetText(got.Scope, got.Name), instant(got.Until))
		return err
	})
	return cmd
}

// untilFlag reads an instant to come; the zero time when it was not given.
func untilFlag(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("%w: until: %q: want an instant such as 2026-01-02T15:04:05Z", errUsage, text)
	}
	if !at.After(time.Now()) {
		return at, fmt.Errorf("%w: until: %s has passed; suspends lift ends a hold", errUsage, text)
	}
	return at, nil
}

func targetText(scope, name string) string {
	if name == "" {
		return scope
	}
	return scope + " " + name
}

func newSuspendsLift(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "lift " + targetUsage, Short: "End a hold now",
		Long: "End the hold of a bucket, row, column, level or of all now. Holds of other scopes stay: lifting a\n" +
			"column does not lift the hold of one of its buckets.",
		Args:                  cobra.MaximumNArgs(1),
		DisableFlagsInUseLine: true,
	}
	target := addTargetFlags(cmd)
	var lifted suspend.Target
	operate(cmd, env, func(ctx context.Context, c *client, args []string) (got admin.Lifted, err error) {
		if lifted, err = target(args); err != nil {
			return got, err
		}
		q := url.Values{"scope": {lifted.Scope.String()}, "name": {lifted.Name}}
		return got, c.do(ctx, http.MethodDelete, q, nil, &got, "groups", c.group, "suspends")
	}, func(w io.Writer, got admin.Lifted) error {
		text := "lifted"
		if !got.Lifted {
			text = "was not held"
		}
		_, err := fmt.Fprintf(w, "%s %s\n", targetText(lifted.Scope.String(), lifted.Name), text)
		return err
	})
	return cmd
}
