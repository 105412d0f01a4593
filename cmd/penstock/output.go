package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/pflag"
)

const keyJSON = "json"

func addJSONFlag(fs *pflag.FlagSet) *bool {
	return fs.Bool(keyJSON, false, "print JSON")
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(safeWriter{w})
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// table prints aligned columns; a cell without a value is a dash.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer, columns ...string) *table {
	t := &table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	t.row(columns...)
	return t
}

func (t *table) row(cells ...string) {
	for i, c := range cells {
		if cells[i] = escapeControls(c, ""); c == "" {
			cells[i] = "-"
		}
	}
	// Errors come out of Flush.
	fmt.Fprintln(t.w, strings.Join(cells, "\t"))
}

func (t *table) flush() error { return t.w.Flush() }

// safeWriter writes text of foreign origin to a terminal: a reason, a name, a message of a server. A control character in
// the text could move the cursor, or hide earlier output.
type safeWriter struct{ to io.Writer }

// Write implements [io.Writer]. Each p must end between two characters.
func (w safeWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.to, escapeControls(string(p), "\t\n")); err != nil {
		return 0, err //nolint:wrapcheck // it is the writer's own
	}
	return len(p), nil
}

// escapeControls replaces control characters that are not in keep with \uXXXX, which a JSON reader decodes to the same text.
// Bytes that are not UTF-8 become U+FFFD. With a line feed in keep, a carriage return before one stays, too.
func escapeControls(text, keep string) string {
	if utf8.ValidString(text) && strings.IndexFunc(text, unicode.IsControl) < 0 {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		lineEnd := r == '\r' && strings.HasPrefix(text[i+1:], "\n") && strings.Contains(keep, "\n")
		if unicode.IsControl(r) && !strings.ContainsRune(keep, r) && !lineEnd {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func number[T int | int64 | uint64 | uint8](n T) string { return strconv.FormatInt(int64(n), 10) }

func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}
