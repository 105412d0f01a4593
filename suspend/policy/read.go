package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// maxFiles bounds the files of a directory.
	maxFiles = 1000
	// rereads bounds how often a directory that changes under the reader is read anew.
	rereads = 3
)

// ErrNoFiles is the error for a directory without a policy file. It is no empty policy: a volume that is not mounted would
// lift every limit.
var ErrNoFiles = errors.New("no *.yaml or *.yml file in the policy directory")

// read reads a policy file, or the files of a directory in the order of their names. seen is what was read before.
func read(path string, seen []Part) ([]Part, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		text, err := readFile(path, MaxBytes)
		return []Part{{Text: text}}, err
	}
	// Files of a directory are read one after the other. When a link to their folder is swapped in between, some are of the
	// old version and some of the new; two equal readings in a row are of one version.
	parts, err := readDir(path)
	for range rereads {
		if err == nil && sameParts(parts, seen) {
			break
		}
		seen = parts
		parts, err = readDir(path)
	}
	return parts, err
}

// readDir reads a directory once. Names that begin with a dot are not for it: temporary files of editors, and the
// folders of a ConfigMap volume.
func readDir(path string) ([]Part, error) {
	entries, err := os.ReadDir(path) // by name
	if err != nil {
		return nil, err
	}
	var parts []Part
	room := int64(MaxBytes)
	for _, e := range entries {
		name := e.Name()
		if ext := filepath.Ext(name); strings.HasPrefix(name, ".") || ext != ".yaml" && ext != ".yml" {
			continue
		}
		full := filepath.Join(path, name)
		if info, err := os.Stat(full); err != nil { // of what a link leads to
			return nil, err
		} else if info.IsDir() {
			continue
		}
		if len(parts) == maxFiles {
			return nil, fmt.Errorf("policy directory has more than %d files", maxFiles)
		}
		text, err := readFile(full, room)
		if err != nil {
			return nil, err
		}
		room = max(0, room-int64(len(text)))
		parts = append(parts, Part{File: name, Text: text})
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("%s: %w", path, ErrNoFiles)
	}
	return parts, nil
}

// readFile reads a file up to one byte more than there is room for, so that the parser refuses a larger one.
func readFile(path string, room int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only read from
	return io.ReadAll(io.LimitReader(file, room+1))
}

func sameParts(a, b []Part) bool {
	return slices.EqualFunc(a, b, func(x, y Part) bool { return x.File == y.File && bytes.Equal(x.Text, y.Text) })
}
