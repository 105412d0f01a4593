package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"
)

func newRecord(env environment) *cobra.Command {
	cmd := &cobra.Command{
		Use: "record --for DURATION [--out FILE]", Short: "Record the requests that are done as a trace for policy simulate", GroupID: groupOperations,
		Long: "Record the requests of a topic that are done while it runs, one JSON line each with the time of\n" +
			"arrival, user, model, cost and service time. It has no bodies. penstock policy simulate reads it.",
		Args: cobra.NoArgs, DisableFlagsInUseLine: true,
	}
	addOperationFlags(cmd.Flags())
	length := cmd.Flags().Duration("for", time.Minute, "length of the recording")
	path := cmd.Flags().String("out", "-", "`file` to write, - for standard output")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := newClient(cmd, env)
		if err != nil {
			return err
		}
		u := url.URL{Scheme: "http", Host: c.addr, Path: "/api/v1/record", RawQuery: url.Values{
			"topic": {c.topic}, "for": {length.String()},
		}.Encode()}
		r, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, u.String(), nil)
		if err != nil {
			return fmt.Errorf("ask %s: %w", c.addr, err)
		}
		answer, err := (&http.Client{Timeout: *length + answerMax}).Do(r)
		if err != nil {
			return fmt.Errorf("ask %s: %w", c.addr, err)
		}
		defer answer.Body.Close() //nolint:errcheck // only read from
		if answer.StatusCode != http.StatusOK {
			b, err := io.ReadAll(io.LimitReader(answer.Body, answerBytes))
			if err != nil {
				return fmt.Errorf("read answer of %s: %w", c.addr, err)
			}
			return refusal(answer.Status, b)
		}
		if err := save(cmd.OutOrStdout(), *path, answer.Body); err != nil {
			if cmd.Context().Err() != nil {
				return nil // told to stop; what was recorded is kept
			}
			return err
		}
		if lost := answer.Trailer.Get("Penstock-Lost"); lost != "" && lost != "0" {
			return fmt.Errorf("%s requests are missing: they came faster than they could be read", lost)
		}
		return nil
	}
	return cmd
}

// save copies r to a file, or to w when path is -.
func save(w io.Writer, path string, r io.Reader) (err error) {
	if path != "-" {
		f, err := os.Create(path)
		if err != nil {
			return fmt.Errorf("write trace: %w", err)
		}
		_, err = io.Copy(f, r)
		if e := f.Close(); err == nil {
			err = e
		}
		if err != nil {
			return fmt.Errorf("write trace: %w", err)
		}
		return nil
	}
	if _, err := io.Copy(w, r); err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	return nil
}
