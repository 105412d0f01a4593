// Command penstock is the one binary: servers, operations, demo and benchmarks.
//
// This package owns flags, configuration, signals and exit codes, and nothing else:
// package node assembles servers, package bench has the demo and the benchmarks, and
// operations go over the admin API. It is the only place that reads the environment.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage or configuration.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/penstockmq/penstock/cmd/node"
)

// version is set by the linker: make build takes it from git.
var version = ""

func main() { os.Exit(run(os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr)) }

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// run is main with its surroundings handed in.
func run(args, environ []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := watchSignals(context.Background())
	defer stop()

	root := newRoot(newEnvironment(environ))
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errUsage), errors.Is(err, node.ErrOptions):
		fmt.Fprintf(safeWriter{errOut}, "penstock: %v\n", err)
		return exitUsage
	default:
		fmt.Fprintf(safeWriter{errOut}, "penstock: %v\n", err)
		return exitFailed
	}
}
