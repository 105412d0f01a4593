package main

import (
	"fmt"
	"io"
	"net/url"
	"reflect"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/penstockmq/penstock/cmd/node"
)

func newConfig(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", Short: "Print the effective configuration, secrets hidden", GroupID: groupTools, Args: cobra.NoArgs,
		Long: "Print what flags, environment, file and defaults add up to, as a penstock.yaml.\n" +
			"Flags win over PENSTOCK_* variables, those over the file, the file over defaults.\n" +
			"The defaults are those of separate servers; up has auto-create: true and in-flight: 4 in their place.",
	}
	def := node.Defaults()
	addServerFlags(cmd.Flags(), def)
	addBrokerFlags(cmd.Flags(), def)
	addClientFlags(cmd.Flags(), def)
	addGatewayFlags(cmd.Flags(), def)
	addPoolFlags(cmd.Flags(), def)
	addSharedFlags(cmd.Flags(), def)
	addModelFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := load(cmd.Flags(), env, def)
		if err != nil {
			return err
		}
		if err := s.Validate(); err != nil {
			return err
		}
		return printSettings(cmd.OutOrStdout(), s)
	}
	return cmd
}

// printSettings writes s as YAML that load reads back to the same, secrets aside.
func printSettings(w io.Writer, s settings) error {
	s.NATSURL = hidePassword(s.NATSURL)
	models := make([]node.ModelOptions, len(s.Models))
	for i, m := range s.Models {
		m.URL = hidePassword(m.URL)
		models[i] = m
	}
	s.Models = models
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(toYAML(reflect.ValueOf(s))); err != nil {
		return fmt.Errorf("print configuration: %w", err)
	}
	return e.Close()
}

// hidePassword masks what stands between ':' and '@' in a URL; text that is no URL
// may hold anything and is masked whole.
func hidePassword(text string) string {
	if text == "" {
		return ""
	}
	u, err := url.Parse(text)
	if err != nil {
		return "***"
	}
	if u.User != nil {
		// Also a lone user part: NATS takes a token there.
		u.User = url.User("***")
	}
	return u.String()
}

// toYAML builds the document by field order and not by a map, so that related
// settings stay together.
func toYAML(v reflect.Value) *yaml.Node {
	switch x := v.Interface().(type) {
	case time.Duration:
		return scalar("!!str", x.String())
	case node.Size:
		return scalar("!!str", x.String())
	}
	switch v.Kind() {
	case reflect.Struct:
		n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		addFields(n, v)
		return n
	case reflect.Slice:
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for i := range v.Len() {
			n.Content = append(n.Content, toYAML(v.Index(i)))
		}
		return n
	case reflect.Bool:
		return scalar("!!bool", strconv.FormatBool(v.Bool()))
	case reflect.Int, reflect.Int64:
		return scalar("!!int", strconv.FormatInt(v.Int(), 10))
	default:
		return scalar("!!str", fmt.Sprint(v.Interface()))
	}
}

func addFields(n *yaml.Node, v reflect.Value) {
	for i := range v.NumField() {
		switch key := v.Type().Field(i).Tag.Get("mapstructure"); key {
		case "-":
		case ",squash":
			addFields(n, v.Field(i))
		default:
			n.Content = append(n.Content, scalar("!!str", key), toYAML(v.Field(i)))
		}
	}
}

func scalar(tag, value string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}
	if tag == "!!str" && value == "" {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}
