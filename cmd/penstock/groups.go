package main

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstockmq/penstock/broker/admin"
)

func newGroups(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "groups", Short: "List and delete consumer groups", GroupID: groupOperations, Args: cobra.NoArgs}
	cmd.AddCommand(newGroupsList(env), newGroupsDelete(env))
	return cmd
}

func newGroupsList(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List consumer groups, and the messages that are kept for each of them alone", Args: cobra.NoArgs,
		Long: "List consumer groups. KEPT counts the messages that every other group of the topic has settled; it is approximate\n" +
			"and up to 10 s old. IDLE is the time without a consumer, while the broker ran. A group that is idle for longer\n" +
			"than RETENTION is removed.",
	}
	operate(cmd, env, func(ctx context.Context, c *client, _ []string) (admin.Groups, error) {
		var list admin.Groups
		err := c.get(ctx, &list, nil, "groups")
		return list, err
	}, func(w io.Writer, list admin.Groups) error {
		t := newTable(w, "GROUP", "TOPIC", "CREATED BY", "CONSUMERS", "IDLE", "RETENTION", "KEPT")
		for _, g := range list.Groups {
			by, retention := "operator", "-"
			if g.Auto {
				by = "consumer"
			}
			if g.Retention > 0 {
				retention = time.Duration(g.Retention).String()
			}
			idle := time.Duration(g.IdleSeconds) * time.Second
			t.row(g.Name, g.Topic, by, number(g.Clients), idle.String(), retention, number(g.Kept))
		}
		return t.flush()
	})
	return cmd
}

func newGroupsDelete(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "delete GROUP", Short: "Delete a consumer group with its positions, suspends and dead letters", Args: cobra.ExactArgs(1),
		Long: "Delete a consumer group with its positions, suspends and dead letters. Messages that were kept for it alone are\n" +
			"deleted as well. A later poll for the group creates it again, where groups are created on demand.",
	}
	operate(cmd, env, func(ctx context.Context, c *client, args []string) (struct{}, error) {
		var done struct{}
		return done, c.do(ctx, http.MethodDelete, nil, nil, &done, "groups", args[0])
	}, func(io.Writer, struct{}) error { return nil })
	return cmd
}
