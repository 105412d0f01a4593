package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.yaml.in/yaml/v3"
)

const (
	// keyPoll is how often the file is looked at: a revoked key is refused within a second. Looking and not listening,
	// because one stat a second costs nothing and works on every file system, through symbolic links too.
	keyPoll = 500 * time.Millisecond

	// keySettle is how old a file must be before an unchanged time stamp proves unchanged content; time stamps of file
	// systems are coarse, and two writes may share one.
	keySettle = 2 * time.Second
)

// Keys is a key file that is followed as it changes. A change that cannot be read keeps the keys of before.
type Keys struct {
	path string
	log  *slog.Logger
	set  atomic.Pointer[KeySet]

	seen    fs.FileInfo // owned by Run, after OpenKeys
	settled bool        // owned by Run: the file was old enough when it was read
	broken  string      // owned by Run: the error logged last
}

// OpenKeys reads the file at path, which must exist. Call Run to follow it. A nil log drops the log.
func OpenKeys(path string, log *slog.Logger) (*Keys, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	k := &Keys{path: path, log: log}
	if err := k.load(time.Now()); err != nil {
		return nil, err
	}
	return k, nil
}

// Owner returns whose secret is.
func (k *Keys) Owner(secret string) (Owner, bool) { return k.set.Load().Owner(secret) }

// User returns the user who owns secret.
func (k *Keys) User(secret string) (string, bool) { return k.set.Load().User(secret) }

// Len is the number of keys.
func (k *Keys) Len() int { return k.set.Load().Len() }

// Run follows the file until ctx is done; it returns nil then.
func (k *Keys) Run(ctx context.Context) error {
	t := time.NewTicker(keyPoll)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-t.C:
			k.refresh(now)
		}
	}
}

// refresh is one pass of Run.
func (k *Keys) refresh(now time.Time) {
	if k.settled && k.broken == "" && k.unchanged() {
		return
	}
	before := k.set.Load()
	err := k.load(now)
	switch {
	case err != nil && err.Error() != k.broken:
		k.broken = err.Error()
		k.log.Error("key file not read, the keys of before stay", "path", k.path, "error", err)
	case err == nil:
		k.broken = ""
		if n := k.Len(); n != before.Len() {
			k.log.Info("key file read", "path", k.path, "keys", n)
		}
	}
}

func (k *Keys) unchanged() bool {
	info, err := os.Stat(k.path)
	return err == nil && os.SameFile(info, k.seen) && info.Size() == k.seen.Size() && info.ModTime().Equal(k.seen.ModTime())
}

// load stats before it reads: a write in between leaves an old time stamp with new content, and is read once more.
func (k *Keys) load(now time.Time) error {
	info, err := os.Stat(k.path)
	if err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	data, err := readKeyFile(k.path)
	if err != nil {
		return err
	}
	set, err := ParseKeys(data)
	if err != nil {
		return fmt.Errorf("%s: %w", k.path, err)
	}
	k.set.Store(set)
	k.seen = info
	k.settled = now.Sub(info.ModTime()) > keySettle
	return nil
}

func readKeyFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	defer func() { _ = f.Close() }() // only read from
	data, err := io.ReadAll(io.LimitReader(f, keyFileMax+1))
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	if len(data) > keyFileMax {
		return nil, fmt.Errorf("%s: %w: more than %d bytes", path, ErrKeys, keyFileMax)
	}
	return data, nil
}

// AppendKey adds an entry to the key file at path, which it makes if there is none. Comments and order of the file stay.
// The new file takes the old one's place in one step, so a gateway that follows it never sees half of it. Two
// appends at the same time may lose one: it is an operator's command, not a service.
func AppendKey(path string, entry KeyEntry) error {
	if _, err := entry.check(); err != nil {
		return err
	}
	data, err := readKeyFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	entries, err := parseEntries(data)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if _, err := NewKeySet(append(entries, entry)...); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	text, err := appendEntry(data, entry)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return replaceFile(path, text)
}

// appendEntry works on the tree of the document and not on its values: values have no comments. REQUIRES: data is a valid
// key document.
func appendEntry(data []byte, entry KeyEntry) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeys, err)
	}
	list := keyList(&doc)
	if list == nil {
		return yaml.Marshal(keyDocument{Keys: []KeyEntry{entry}})
	}
	var item yaml.Node
	if err := item.Encode(entry); err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	list.Content = append(list.Content, &item)
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(&doc), e.Close()); err != nil {
		return nil, fmt.Errorf("encode keys: %w", err)
	}
	return out.Bytes(), nil
}

// keyList returns the node of the sequence under "keys"; nil if there is none.
func keyList(doc *yaml.Node) *yaml.Node {
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil
	}
	pairs := doc.Content[0].Content
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i].Value == "keys" && pairs[i+1].Kind == yaml.SequenceNode {
			return pairs[i+1]
		}
	}
	return nil
}

// replaceFile writes beside path and renames. Only the owner may read it: hashes are no secret, but users' names may be.
func replaceFile(path string, text []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".keys-*")
	if err != nil {
		return fmt.Errorf("write key file: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write key file: %w", err), os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
