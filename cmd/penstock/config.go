package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/penstockmq/penstock/cmd/node"
)

// settings is all that can be configured: node.Options, and what is the command's own.
type settings struct {
	node.Options `mapstructure:",squash"`

	LogLevel  string `mapstructure:"log-level"`
	LogFormat string `mapstructure:"log-format"`
}

func defaultSettings(o node.Options) settings {
	return settings{Options: o, LogLevel: "info", LogFormat: "text"}
}

// defaultFile is read from the current folder when no --config is given.
const defaultFile = "penstock.yaml"

// load merges flags over the environment over the file over def. It returns every
// fault it finds, each with its key; faults of the values themselves are found by
// Validate, which the caller calls when it has filled in what configuration cannot say.
func load(fs *pflag.FlagSet, env environment, def node.Options) (settings, error) {
	v := viper.New()
	defaults, err := scalars(defaultSettings(def))
	if err != nil {
		return settings{}, err
	}
	known := map[string]bool{keyConfig: true}
	for key, value := range defaults {
		v.SetDefault(key, value)
		known[key] = true
	}
	if err := readFile(v, fs, env); err != nil {
		return settings{}, err
	}
	if err := mergeEnvironment(v, env, known); err != nil {
		return settings{}, err
	}
	fs.VisitAll(func(f *pflag.Flag) {
		if known[f.Name] && f.Name != keyConfig {
			err = errors.Join(err, v.BindPFlag(f.Name, f))
		}
	})
	if err != nil {
		return settings{}, fmt.Errorf("bind flags: %w", err)
	}
	s, err := decode(v.AllSettings())
	if err != nil {
		return settings{}, err
	}
	return s, addModels(&s.Options, fs, env)
}

// scalars are the keys that flags and variables can set, with their values; lists are
// for the file.
func scalars(s settings) (map[string]any, error) {
	m := map[string]any{}
	if err := mapstructure.Decode(s, &m); err != nil {
		return nil, fmt.Errorf("list settings: %w", err)
	}
	for _, list := range []string{"topics", "groups", "models"} {
		delete(m, list)
	}
	return m, nil
}

func readFile(v *viper.Viper, flags *pflag.FlagSet, env environment) error {
	name, err := flags.GetString(keyConfig)
	if err != nil {
		return fmt.Errorf("read --%s: %w", keyConfig, err)
	}
	if name == "" {
		name = env[envName(keyConfig)]
	}
	if name == "" {
		if _, err := os.Stat(defaultFile); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		name = defaultFile
	}
	v.SetConfigFile(name)
	v.SetConfigType("yaml")
	if err := v.ReadInConfig(); err != nil {
		return fmt.Errorf("%w: %s: %s: %w", node.ErrOptions, keyConfig, name, err)
	}
	return nil
}

// mergeEnvironment lays the variables over the file. Viper could read them itself, but
// only from the process, and without telling those that it does not know.
func mergeEnvironment(v *viper.Viper, env environment, known map[string]bool) error {
	if names := env.unknown(known); len(names) > 0 {
		slices.Sort(names)
		return fmt.Errorf("%w: environment: no such setting: %q", node.ErrOptions, names)
	}
	values := map[string]any{}
	for key := range known {
		if value, ok := env[envName(key)]; ok && value != "" && key != keyConfig {
			values[key] = value
		}
	}
	return v.MergeConfigMap(values)
}

// decode is strict: an unknown key is a fault, and a value is never bent to fit.
func decode(all map[string]any) (settings, error) {
	var s settings
	d, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		Result: &s, ErrorUnused: true, DecodeHook: mapstructure.DecodeHookFuncType(convert),
	})
	if err != nil {
		return s, fmt.Errorf("build decoder: %w", err)
	}
	if err := d.Decode(all); err != nil {
		return s, errors.Join(byKey(err)...)
	}
	return s, nil
}

// byKey takes the decoder's joined errors apart and puts the key first in each.
func byKey(err error) []error {
	var all []error
	switch err := err.(type) { //nolint:errorlint // this is the walk that errors.As does
	case *mapstructure.DecodeError:
		return describe(err)
	case interface{ Unwrap() []error }:
		for _, e := range err.Unwrap() {
			all = append(all, byKey(e)...)
		}
	case interface{ Unwrap() error }:
		all = byKey(err.Unwrap())
	default:
		all = []error{fmt.Errorf("%w: %w", node.ErrOptions, err)}
	}
	return all
}

// describe is the text of one fault of the decoder. It has no type for unknown keys,
// only this text, which a test holds.
func describe(err *mapstructure.DecodeError) []error {
	const unknown = "has invalid keys: "
	list, ok := strings.CutPrefix(err.Unwrap().Error(), unknown)
	if !ok {
		return []error{fmt.Errorf("%w: %s: %w", node.ErrOptions, err.Name(), err.Unwrap())}
	}
	var all []error
	for key := range strings.SplitSeq(list, ", ") {
		if err.Name() != "" {
			key = err.Name() + "." + key
		}
		all = append(all, fmt.Errorf("%w: %s: unknown key", node.ErrOptions, key))
	}
	return all
}

// addModels puts the command line's upstreams over the file's and looks up the keys.
func addModels(o *node.Options, flags *pflag.FlagSet, env environment) error {
	// Operations have a --model of their own, which is one model's name.
	if f := flags.Lookup(keyModel); f != nil && f.Value.Type() == "stringArray" {
		if err := addModelArguments(o, flags); err != nil {
			return err
		}
	}
	var faults []error
	if o.AlarmTokenEnv != "" {
		o.AlarmToken = node.Key(env[o.AlarmTokenEnv])
		if o.AlarmToken == "" {
			faults = append(faults, fmt.Errorf("%w: alarm-token-env: variable %s is not set", node.ErrOptions, o.AlarmTokenEnv))
		}
	}
	for i := range o.Models {
		m := &o.Models[i]
		if m.KeyEnv == "" {
			continue
		}
		m.Key = node.Key(env[m.KeyEnv])
		if m.Key == "" {
			faults = append(faults, fmt.Errorf("%w: models[%d].key-env: variable %s is not set", node.ErrOptions, i, m.KeyEnv))
		}
	}
	return errors.Join(faults...)
}

func addModelArguments(o *node.Options, flags *pflag.FlagSet) error {
	texts, err := flags.GetStringArray(keyModel)
	if err != nil {
		return fmt.Errorf("read --%s: %w", keyModel, err)
	}
	keyEnv, err := flags.GetString(keyKeyEnv)
	if err != nil {
		return fmt.Errorf("read --%s: %w", keyKeyEnv, err)
	}
	given := map[string]node.ModelOptions{}
	for _, text := range texts {
		m, err := modelArgument(text)
		if err != nil {
			return err
		}
		m.KeyEnv = keyEnv
		given[m.Name] = m
	}
	o.Models = slices.DeleteFunc(o.Models, func(m node.ModelOptions) bool { _, ok := given[m.Name]; return ok })
	for _, name := range slices.Sorted(maps.Keys(given)) {
		o.Models = append(o.Models, given[name])
	}
	return nil
}
