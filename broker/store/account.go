package store

import "encoding/binary"

const accountVersion = 1

// Account is what one target of a group, a bucket, row, column, level or all of it,
// has used of its limits. The scope is the number that package suspend gives it. Data
// belongs to whoever keeps the accounts, who versions it; the store does not look.
//
// An account comes with almost every delivery, so it is written with the class
// Written. One that is lost to a power cut was charged for a delivery whose lease was
// lost with it.
type Account struct {
	Group uint32
	Scope uint8
	Name  string
	Data  []byte
}

func (a *Account) appendValue(dst []byte) []byte {
	dst = append(dst, accountVersion)
	dst = binary.AppendUvarint(dst, uint64(len(a.Data)))
	return append(dst, a.Data...)
}

func decodeAccount(key, value []byte) (Account, error) {
	k := keyFields{rest: key}
	k.skipTable()
	a := Account{Group: k.uint32(), Scope: k.uint8(), Name: k.string()}
	if err := k.err("account"); err != nil {
		return Account{}, err
	}
	d := newDecoder(string(value), accountVersion)
	a.Data = d.bytes()
	if err := d.err("account"); err != nil {
		return Account{}, err
	}
	return a, nil
}
