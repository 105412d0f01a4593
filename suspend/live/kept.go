package live

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/penstockmq/penstock/suspend/policy"
)

// keptVersion is the copy of the policy in force in a file of the process. A lost or damaged bucket must not lift the
// limits: then the copy stays in force. To lift all limits an operator applies an empty policy, which is a version like any
// other.
type keptVersion struct {
	Format   int    `json:"format"` // keptFormat
	Revision uint64 `json:"revision"`
	record
	Sum string `json:"sum"` // SHA-256 of text, hex: a damaged copy is no copy
}

const keptFormat = 1

// errKept: the file exists, and differs from the written one.
var errKept = errors.New("kept policy is damaged")

// loadKept returns the kept version; its Document is nil if there is none.
func loadKept(path string) (Version, error) {
	value, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Version{}, nil
	}
	if err != nil {
		return Version{}, err
	}
	var k keptVersion
	if err := json.Unmarshal(value, &k); err != nil {
		return Version{}, fmt.Errorf("%w: %s: %w", errKept, path, err)
	}
	if k.Format != keptFormat || k.Sum != sumOf(k.Text) {
		return Version{}, fmt.Errorf("%w: %s: format %d, sum %q", errKept, path, k.Format, k.Sum)
	}
	v := Version{Revision: k.Revision, At: k.At, Author: k.Author, Comment: k.Comment, From: k.From, Text: []byte(k.Text)}
	if v.Document, err = policy.Parse(v.Text); err != nil {
		return Version{}, fmt.Errorf("%w: %s: %w", errKept, path, err)
	}
	return v, nil
}

// saveKept writes v and syncs it. A crash leaves the previous version, or v.
func saveKept(path string, v Version) error {
	value, err := json.Marshal(keptVersion{
		Format: keptFormat, Revision: v.Revision, Sum: sumOf(string(v.Text)),
		record: record{Text: string(v.Text), Author: v.Author, Comment: v.Comment, At: v.At, From: v.From},
	})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(value)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// lostTo reports whether v, the version in NATS, is older than kept: then NATS has lost a version.
func (kept Version) lostTo(v Version) bool {
	return kept.Document != nil && kept.Revision > v.Revision && kept.At.After(v.At)
}
