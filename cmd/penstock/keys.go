package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/penstockmq/penstock/cmd/node"
	"github.com/penstockmq/penstock/gateway"
)

func newKeys(env environment) *cobra.Command {
	cmd := &cobra.Command{Use: "keys", Short: "Make API keys", GroupID: groupTools, Args: cobra.NoArgs}
	cmd.AddCommand(newKeysCreate(env))
	return cmd
}

func newKeysCreate(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create --user USER", Short: "Make an API key, add its hash to the key file, print the key once", Args: cobra.NoArgs,
		Long: "Make an API key, add its hash to the key file, and print the key. It is shown this once: the\n" +
			"file has the hash only. A running gateway takes the key within a second.",
	}
	def := node.Defaults()
	fs := cmd.Flags()
	fs.String(keyConfig, "", "configuration `file` (default penstock.yaml in the current folder, if there)")
	fs.String("keys", def.Keys, "key `file`, made if there is none (default keys.yaml in the data folder)")
	fs.String("data", def.Data, "data `folder`")
	user := fs.String("user", "", "whose requests they are that come with the key")
	name := fs.String("name", "", "name of the key, for people and for the importance rules of a policy")
	asJSON := addJSONFlag(fs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := load(cmd.Flags(), env, def)
		if err != nil {
			return err
		}
		if *user == "" {
			return fmt.Errorf("%w: --user is missing", errUsage)
		}
		path := keyFile(s.Options)
		if s.Keys == "" { // the folder of a file that was named is never made: its name may be wrong
			if err := makeDataFolder(s.Options); err != nil {
				return err
			}
		}
		secret, err := createKey(path, *user, *name)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), map[string]string{"key": secret, "user": *user, "file": path})
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), secret)
		return err
	}
	return cmd
}

func createKey(path, user, name string) (string, error) {
	secret, entry, err := gateway.NewKey(user, name)
	if err != nil {
		return "", fmt.Errorf("make key: %w", err)
	}
	if err := gateway.AppendKey(path, entry); err != nil {
		return "", fmt.Errorf("add key to %s: %w", path, err)
	}
	return secret, nil
}
