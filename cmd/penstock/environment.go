package main

import (
	"regexp"
	"strings"
)

// environment is the process's environment, read once at start.
type environment map[string]string

func newEnvironment(environ []string) environment {
	env := make(environment, len(environ))
	for _, kv := range environ {
		if k, v, ok := strings.Cut(kv, "="); ok {
			env[k] = v
		}
	}
	return env
}

const envPrefix = "PENSTOCK_"

// envName is the variable of a key: auto-create is PENSTOCK_AUTO_CREATE.
func envName(key string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
}

// foreignEnv are variables with our prefix that others set: Kubernetes gives every
// container PENSTOCK_SERVICE_HOST, PENSTOCK_PORT_8080_TCP and the like when a service
// is called penstock; tests and clients have theirs.
var foreignEnv = regexp.MustCompile(`^PENSTOCK_(.+_)?(SERVICE_HOST|SERVICE_PORT|SERVICE_PORT_.+|PORT|PORT_\d+_.+)$|^PENSTOCK_(TEST_.+|(API_)?KEY)$`)

// unknown lists variables that look like settings but are none of keys: a typing
// error there would otherwise be a setting silently not made.
func (env environment) unknown(keys map[string]bool) []string {
	known := make(map[string]bool, len(keys))
	for key := range keys {
		known[envName(key)] = true
	}
	var names []string
	for name := range env {
		if strings.HasPrefix(name, envPrefix) && !known[name] && !foreignEnv.MatchString(name) {
			names = append(names, name)
		}
	}
	return names
}
