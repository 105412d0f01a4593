package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstockmq/penstock/broker/datadir"
	"github.com/penstockmq/penstock/broker/store"
	"github.com/penstockmq/penstock/cmd/node"
)

// errDamaged is wrapped by the error of store repair without --yes.
var errDamaged = errors.New("store is damaged")

func newStore(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "store", Short: "Work on the store of a broker that is stopped", GroupID: groupTools, Args: cobra.NoArgs}
	cmd.AddCommand(newStoreRepair(env))
	return cmd
}

func newStoreRepair(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "repair", Short: "Find damage in the store's log, and give up what is behind it", Args: cobra.NoArgs,
		Long: "Find the first damaged batch in the logs of a store that no process has open. Without --yes the\n" +
			"command changes nothing, reports the loss of a cut, and exits with 1 if there is damage.\n\n" +
			"With --yes the log is cut off at the damage, so that the broker starts again. Everything that\n" +
			"was stored behind it is lost to the broker, messages that were acknowledged to their senders\n" +
			"among it; the bytes are kept in files that end in .cut. A copy of the folder from before the\n" +
			"damage is the better way out. Damaged tables are not found here: the broker starts with them,\n" +
			"counts and logs what it cannot read, and says degraded on /readyz. Only damage among the records\n" +
			"that a start has to read (topics, groups, buckets, cursors, leases, holds) stops it, with the name\n" +
			"of the file: then a copy of the folder is the way out.",
	}
	def := node.Defaults()
	fs := cmd.Flags()
	fs.String(keyConfig, "", "configuration `file` (default penstock.yaml in the current folder, if there)")
	fs.String("data", def.Data, "data `folder`")
	yes := fs.Bool("yes", false, "cut the log off at the damage")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		s, err := load(cmd.Flags(), env, def)
		if err != nil {
			return err
		}
		if _, err := os.Stat(s.Data); err != nil { // Acquire would create the folder
			return fmt.Errorf("data: %w", err)
		}
		lock, err := datadir.Acquire(cmd.Context(), s.Data, 0)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lock.Release()) }()
		damage, err := store.Repair(filepath.Join(s.Data, node.StoreFolder), *yes)
		if err != nil {
			return err
		}
		return printDamage(cmd, damage, *yes)
	}
	return cmd
}

func printDamage(cmd *cobra.Command, d *store.LogDamage, cut bool) error {
	if d == nil {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "the log is whole; a torn end, if there is one, is cut off at the next start")
		return err
	}
	found := fmt.Sprintf("%s is damaged at offset %d; behind it are %d bytes, with %d batches that are good by themselves",
		d.Log, d.Offset, d.LostBytes, d.LostBatches)
	if !cut {
		return fmt.Errorf("%w: %s; give them up with --yes", errDamaged, found)
	}
	kept := "nothing of it is left"
	if len(d.Files) > 0 {
		kept = "the bytes are in " + strings.Join(d.Files, ", ")
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: cut off; %s\n", found, kept)
	return err
}
