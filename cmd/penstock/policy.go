package main

import (
	"fmt"
	"io"
	"net/url"
	"os"

	"github.com/spf13/cobra"

	"github.com/penstockmq/penstock/broker/admin"
	"github.com/penstockmq/penstock/suspend/policy"
)

func newPolicy(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "Show the policy in force, check a policy file", GroupID: groupOperations, Args: cobra.NoArgs}
	cmd.AddCommand(newPolicyShow(env), newPolicyCheck())
	return cmd
}

func newPolicyShow(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show", Short: "Show the rules in force, or what they say of one user and model", Args: cobra.NoArgs,
	}
	addOperationFlags(cmd.Flags())
	user := cmd.Flags().String("user", "", "show what holds for this user, with --model")
	model := cmd.Flags().String("model", "", "show what holds for this model, with --user")
	asJSON := addJSONFlag(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkCell(*user, *model); err != nil {
			return err
		}
		c, err := newClient(cmd, env)
		if err != nil {
			return err
		}
		if *user != "" || *model != "" {
			var cell admin.Cell
			q := url.Values{"user": {*user}, "model": {*model}}
			if err := c.get(cmd.Context(), &cell, q, "policy"); err != nil {
				return err
			}
			return printCell(cmd.OutOrStdout(), cell, *asJSON)
		}
		var p admin.Policy
		if err := c.get(cmd.Context(), &p, nil, "policy"); err != nil {
			return err
		}
		return printPolicy(cmd.OutOrStdout(), p, *asJSON)
	}
	return cmd
}

func newPolicyCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use: "check FILE", Short: "Check a policy file without a server", Args: cobra.ExactArgs(1),
		Long: "Check a policy file without a server and show its rules, the most specific first; with\n" +
			"--user and --model, what they say of one cell. Exit code 1 when the file is refused.",
	}
	user := cmd.Flags().String("user", "", "show what would hold for this user, with --model")
	model := cmd.Flags().String("model", "", "show what would hold for this model, with --user")
	asJSON := addJSONFlag(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkCell(*user, *model); err != nil {
			return err
		}
		data, err := os.ReadFile(args[0])
		if err != nil {
			return fmt.Errorf("read policy: %w", err)
		}
		doc, err := policy.Parse(data)
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		if *user != "" || *model != "" {
			return printCell(cmd.OutOrStdout(), admin.Cell{User: *user, Model: *model, Limits: doc.Resolve(*user, *model).Explain()}, *asJSON)
		}
		p := admin.Policy{Source: args[0], Limits: []policy.Text{}}
		for _, r := range doc.Rules() {
			p.Limits = append(p.Limits, r.Text())
		}
		return printPolicy(cmd.OutOrStdout(), p, *asJSON)
	}
	return cmd
}

// checkCell refuses half a cell: what its limits are would be a guess.
func checkCell(user, model string) error {
	if (user == "") != (model == "") {
		return fmt.Errorf("%w: want both of --user and --model, or neither", errUsage)
	}
	return nil
}

func printPolicy(w io.Writer, p admin.Policy, asJSON bool) error {
	if asJSON {
		return printJSON(w, p)
	}
	if len(p.Limits) == 0 {
		_, err := fmt.Fprintln(w, "no limits")
		return err
	}
	t := newTable(w, "USER", "MODEL", "RATE", "BURST", "WINDOW", "AT", "DEPTH", "DEPTH BYTES")
	for _, l := range p.Limits {
		t.row(l.User, l.Model, l.Rate, l.Burst, l.Window, l.WindowAt, l.Depth, l.DepthBytes)
	}
	return t.flush()
}

func printCell(w io.Writer, c admin.Cell, asJSON bool) error {
	if asJSON {
		return printJSON(w, c)
	}
	t := newTable(w, "LIMIT", "VALUE", "FROM", "LINE")
	for _, l := range c.Limits {
		line := ""
		if l.Line > 0 {
			line = number(l.Line)
		}
		t.row(l.Limit, l.Value, l.From, line)
	}
	return t.flush()
}
