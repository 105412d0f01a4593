package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/suspend/policy"
)

func newPolicy(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "policy", Short: "Show, change, explain, check and simulate policies", GroupID: groupOperations, Args: cobra.NoArgs,
	}
	cmd.AddCommand(
		newPolicyShow(env), newPolicyApply(env), newPolicyHistory(env), newPolicyDiff(env), newPolicyRollback(env),
		newPolicyExplain(env), newPolicyCheck(env), newPolicySchema(), newPolicySimulate(),
	)
	return cmd
}

func newPolicyShow(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show", Short: "Show the policy in force, an earlier version, or what holds for one user and model", Args: cobra.NoArgs,
	}
	user := cmd.Flags().String("user", "", "show what holds for this user, with --model")
	model := cmd.Flags().String("model", "", "show what holds for this model, with --user")
	revision := cmd.Flags().Uint64("revision", 0, "show this version as it was applied")
	operate(cmd, env, func(ctx context.Context, c *client, _ []string) (any, error) {
		if err := checkCell(*user, *model); err != nil {
			return nil, err
		}
		switch {
		case *revision > 0:
			var v admin.PolicyVersion
			err := c.get(ctx, &v, nil, "policy", "versions", strconv.FormatUint(*revision, 10))
			return v, err
		case *user != "":
			var cell admin.Cell
			err := c.get(ctx, &cell, url.Values{"user": {*user}, "model": {*model}}, "policy")
			return cell, err
		}
		var p admin.Policy
		err := c.get(ctx, &p, nil, "policy")
		return p, err
	}, func(w io.Writer, answer any) error {
		switch a := answer.(type) {
		case admin.PolicyVersion:
			return printVersion(w, a)
		case admin.Cell:
			return printCell(w, a)
		case admin.Policy:
			return printPolicy(w, a)
		}
		return nil
	})
	return cmd
}

func newPolicyApply(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "apply FILE", Short: "Put a policy in force everywhere", Args: cobra.ExactArgs(1),
		Long: "Put a policy in force at all brokers, gateways and consumers of the installation, on queued work too,\n" +
			"within a second. FILE may be a directory, of which all *.yaml files are one policy, or - for standard\n" +
			"input. The policy is refused whole when anything in it is wrong.",
	}
	author := cmd.Flags().String("author", "", "who, for the history (default the user who runs the command)")
	comment := cmd.Flags().StringP("comment", "m", "", "why, for the history")
	expect := cmd.Flags().Uint64("expect", 0, "only if this revision is in force")
	operate(cmd, env, func(ctx context.Context, c *client, args []string) (v admin.PolicyVersion, err error) {
		text, err := policyText(cmd.InOrStdin(), args[0])
		if err != nil {
			return v, err
		}
		body := admin.ApplyPolicy{Text: text, Author: *author, Comment: *comment, Expect: *expect}
		if body.Author == "" {
			body.Author = operator(env)
		}
		return v, c.do(ctx, http.MethodPut, nil, body, &v, "policy")
	}, func(w io.Writer, v admin.PolicyVersion) error {
		_, err := fmt.Fprintf(w, "revision %d is in force\n", v.Revision)
		return err
	})
	return cmd
}

// policyText reads a policy and checks it, so that a fault is told with the name of its file.
func policyText(in io.Reader, path string) (string, error) {
	if path == "-" {
		data, err := io.ReadAll(io.LimitReader(in, policy.MaxBytes+1))
		if err != nil {
			return "", fmt.Errorf("read policy: %w", err)
		}
		_, err = policy.Parse(data)
		return string(data), err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("read policy: %w", err)
	}
	doc, err := readPolicy(path)
	if err != nil {
		return "", err
	}
	if info.IsDir() {
		text, err := doc.Marshal()
		return string(text), err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read policy: %w", err)
	}
	return string(data), nil
}

// readPolicy reads a file or a directory once.
func readPolicy(path string) (*policy.Document, error) {
	source, err := policy.Open(path, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return source.Current(), source.Close()
}

func newPolicyHistory(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "history", Short: "List the versions of the policy, the newest first", Args: cobra.NoArgs}
	limit := cmd.Flags().Int("limit", 20, "at most so many, 1 to 1000")
	operate(cmd, env, func(ctx context.Context, c *client, _ []string) (list admin.PolicyVersions, err error) {
		return list, c.get(ctx, &list, url.Values{"limit": {strconv.Itoa(*limit)}}, "policy", "versions")
	}, func(w io.Writer, list admin.PolicyVersions) error {
		t := newTable(w, "REVISION", "AT", "AUTHOR", "COMMENT")
		for _, v := range list.Versions {
			comment := v.Comment
			if v.From > 0 {
				comment = strings.TrimSuffix(fmt.Sprintf("rollback to %d: %s", v.From, comment), ": ")
			}
			t.row(strconv.FormatUint(v.Revision, 10), instant(v.At), v.Author, comment)
		}
		return t.flush()
	})
	return cmd
}

func newPolicyDiff(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "diff OLD [NEW]", Short: "Show in which rules two versions differ", Args: cobra.RangeArgs(1, 2),
		Long: "Show in which rules two versions differ. NEW is the policy in force when it is not given. Each is a\n" +
			"revision or a file.",
	}
	operate(cmd, env, func(ctx context.Context, c *client, args []string) ([]policy.Change, error) {
		old, err := c.document(ctx, args[0])
		if err != nil {
			return nil, err
		}
		updated, err := c.document(ctx, append(args, "")[1])
		if err != nil {
			return nil, err
		}
		return append([]policy.Change{}, policy.Diff(old, updated)...), nil
	}, printChanges)
	return cmd
}

// document is the policy of a revision or a file; of the server when which is empty.
func (c *client) document(ctx context.Context, which string) (*policy.Document, error) {
	if which == "" {
		var p admin.Policy
		if err := c.get(ctx, &p, nil, "policy"); err != nil {
			return nil, err
		}
		return policy.Parse([]byte(p.Document))
	}
	if revision, err := strconv.ParseUint(which, 10, 64); err == nil {
		var v admin.PolicyVersion
		if err := c.get(ctx, &v, nil, "policy", "versions", strconv.FormatUint(revision, 10)); err != nil {
			return nil, err
		}
		return policy.Parse([]byte(v.Text))
	}
	return readPolicy(which)
}

func newPolicyRollback(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "rollback REVISION", Short: "Put an earlier version in force again, as a new version", Args: cobra.ExactArgs(1),
	}
	author := cmd.Flags().String("author", "", "who, for the history (default the user who runs the command)")
	comment := cmd.Flags().StringP("comment", "m", "", "why, for the history")
	operate(cmd, env, func(ctx context.Context, c *client, args []string) (v admin.PolicyVersion, err error) {
		revision, err := strconv.ParseUint(args[0], 10, 64)
		if err != nil || revision == 0 {
			return v, fmt.Errorf("%w: %q is no revision; see penstock policy history", errUsage, args[0])
		}
		body := admin.RollbackPolicy{Revision: revision, Author: *author, Comment: *comment}
		if body.Author == "" {
			body.Author = operator(env)
		}
		return v, c.do(ctx, http.MethodPost, nil, body, &v, "policy", "rollback")
	}, func(w io.Writer, v admin.PolicyVersion) error {
		_, err := fmt.Fprintf(w, "revision %d is in force, with the text of %d\n", v.Revision, v.From)
		return err
	})
	return cmd
}

func newPolicyExplain(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "explain USER MODEL", Short: "Show each level that was considered for a user and model, which won and why",
		Args: cobra.ExactArgs(2),
	}
	all := cmd.Flags().Bool("all", false, "also the kinds of limit that no rule sets")
	operate(cmd, env, func(ctx context.Context, c *client, args []string) (got admin.CellPolicy, err error) {
		return got, c.get(ctx, &got, url.Values{"user": {args[0]}, "model": {args[1]}}, "policy", "explain")
	}, func(w io.Writer, got admin.CellPolicy) error {
		fmt.Fprintf(w, "user %s, model %s: importance L%d (%s)\n", got.User, got.Model, got.Level, got.LevelFrom)
		return printConsidered(w, got.Considered, *all)
	})
	return cmd
}

func printConsidered(w io.Writer, considered []policy.Considered, all bool) error {
	shown := 0
	for _, x := range considered {
		if x.From == policy.NoLevel.String() && !all {
			continue
		}
		shown++
		shadow := ""
		if x.Shadow {
			shadow = ", in shadow: counted, not enforced"
		}
		fmt.Fprintf(w, "\n%s %s: %s (%s%s)\n", x.Section, x.Limit, x.Value, x.From, shadow)
		t := newTable(w, "  LEVEL", "RULE", "LINE", "VALUE", "WHY")
		for _, s := range x.Steps {
			t.row("  "+s.Level, s.Rule, lineOf(s.File, s.Line), s.Value, s.Why)
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if shown == 0 {
		_, err := fmt.Fprintln(w, "\nno rule limits it")
		return err
	}
	return nil
}

// lineOf is where a rule stands.
func lineOf(file string, line int) string {
	switch {
	case line == 0:
		return ""
	case file == "":
		return number(line)
	}
	return fmt.Sprintf("%s:%d", file, line)
}

func newPolicyCheck(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "check FILE", Short: "Check a policy, and with --against-live show what it would change", Args: cobra.ExactArgs(1),
		Long: "Check a policy file or directory. Exit code 1 when it is refused. Without --against-live no server\n" +
			"is asked; with --user and --model, it shows what the policy says of one cell.",
	}
	user := cmd.Flags().String("user", "", "show what would hold for this user, with --model")
	model := cmd.Flags().String("model", "", "show what would hold for this model, with --user")
	live := cmd.Flags().Bool("against-live", false, "compare with the policy that the server follows")
	addOperationFlags(cmd.Flags())
	asJSON := addJSONFlag(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkCell(*user, *model); err != nil {
			return err
		}
		text, err := policyText(cmd.InOrStdin(), args[0])
		if err != nil {
			return err
		}
		doc, err := policy.Parse([]byte(text))
		if err != nil {
			return err
		}
		w := safeWriter{cmd.OutOrStdout()}
		switch {
		case *live:
			return checkAgainstLive(cmd, env, text, *asJSON)
		case *user != "":
			cell := admin.Cell{User: *user, Model: *model, Limits: doc.Resolve(*user, *model).Explain()}
			if *asJSON {
				return printJSON(w, cell)
			}
			return printCell(w, cell)
		}
		canonical, err := doc.Marshal()
		if err != nil {
			return err
		}
		p := admin.Policy{Source: args[0], Document: string(canonical), Limits: []policy.Text{}}
		for _, r := range doc.Rules() {
			p.Limits = append(p.Limits, r.Text())
		}
		if *asJSON {
			return printJSON(w, p)
		}
		return printPolicy(w, p)
	}
	return cmd
}

func checkAgainstLive(cmd *cobra.Command, env environment, text string, asJSON bool) error {
	c, err := newClient(cmd, env)
	if err != nil {
		return err
	}
	var got admin.PolicyCheck
	if err := c.do(cmd.Context(), http.MethodPost, nil, admin.CheckPolicy{Text: text}, &got, "policy", "check"); err != nil {
		return err
	}
	w := safeWriter{cmd.OutOrStdout()}
	if asJSON {
		return printJSON(w, got)
	}
	if err := printChanges(w, got.Changes); err != nil || len(got.Effects) == 0 {
		return err
	}
	fmt.Fprintln(w)
	t := newTable(w, "WHAT CHANGES", "FOR", "LIMIT", "NOW", "FROM", "THEN", "FROM")
	for _, e := range got.Effects {
		t.row(e.Section, e.Name, e.Limit, e.Old, e.OldFrom, e.New, e.NewFrom)
	}
	if err := t.flush(); err != nil {
		return err
	}
	if got.More {
		fmt.Fprintln(w, "and more")
	}
	return nil
}

func newPolicySchema() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of policies", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(policy.Schema())
			return err
		},
	}
}

// checkCell refuses half a cell: what its limits are would be a guess.
func checkCell(user, model string) error {
	if (user == "") != (model == "") {
		return fmt.Errorf("%w: want both of --user and --model, or neither", errUsage)
	}
	return nil
}

func printPolicy(w io.Writer, p admin.Policy) error {
	if p.Notice != "" {
		fmt.Fprintf(w, "# %s\n", p.Notice)
	}
	switch {
	case p.Source != "":
		fmt.Fprintf(w, "# %s\n", p.Source)
	case p.Version != nil:
		printAuthor(w, *p.Version)
	default:
		_, err := fmt.Fprintln(w, "# no policy is in force")
		return err
	}
	_, err := io.WriteString(w, p.Document)
	return err
}

func printVersion(w io.Writer, v admin.PolicyVersion) error {
	printAuthor(w, v)
	_, err := io.WriteString(w, v.Text)
	return err
}

func printAuthor(w io.Writer, v admin.PolicyVersion) {
	fmt.Fprintf(w, "# revision %d, %s by %s\n", v.Revision, instant(v.At), v.Author)
	for line := range strings.Lines(v.Comment) {
		fmt.Fprintf(w, "# %s\n", strings.TrimRight(line, "\n"))
	}
}

func printChanges(w io.Writer, changes []policy.Change) error {
	if len(changes) == 0 {
		_, err := fmt.Fprintln(w, "no rule differs")
		return err
	}
	t := newTable(w, "SECTION", "RULE", "CHANGE", "OLD", "NEW")
	for _, x := range changes {
		name := x.Name
		if x.Shadow {
			name += " (shadow)"
		}
		t.row(x.Section, name, string(x.Op), x.Old, x.New)
	}
	return t.flush()
}

func printCell(w io.Writer, c admin.Cell) error {
	t := newTable(w, "LIMIT", "VALUE", "FROM", "LINE")
	for _, l := range c.Limits {
		t.row(l.Limit, l.Value, l.From, lineOf("", l.Line))
	}
	return t.flush()
}
