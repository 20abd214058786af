package store

import (
	"encoding/binary"
	"fmt"
	"strconv"
)

// Schema is the number of the newest layout that this version reads and writes:
//
//	1  the first layout
//	2  idempotency keys with the age at which they were made, leases of shared queues
//
// A store keeps the lowest number that describes it correctly, so that a version
// can be rolled back until something is written that the older one would ignore:
// see [Store.RaiseSchema].
const Schema = 2

// firstSchema is the number of an empty store.
const firstSchema = 1

// schemaKey holds the schema number in Meta, in decimal.
var schemaKey = []byte("store/schema")

// RaiseSchema adds to b that from then on only versions that know [Schema] may
// read the store: b writes records that an older one would ignore.
func (s *Store) RaiseSchema(b *Batch) {
	if s.Schema() >= Schema {
		return
	}
	b.Put(Meta, schemaKey, strconv.AppendInt(nil, Schema, 10))
	b.After(func() { s.schema.Store(Schema) })
}

// Schema returns the number of the store's layout.
func (s *Store) Schema() int { return int(s.schema.Load()) }

// checkSchema returns the number of a store. It refuses one that this version
// cannot read, and marks an empty one.
func checkSchema(e Engine) (int, error) {
	raw, ok, err := e.Get(Meta, schemaKey)
	if err != nil {
		return 0, fmt.Errorf("read the schema number: %w", err)
	}
	if !ok {
		return firstSchema, beginSchema(e)
	}
	_, val, err := unwrap(raw)
	if err != nil {
		return 0, fmt.Errorf("read the schema number: %w", err)
	}
	n, err := strconv.Atoi(string(val))
	switch {
	case err != nil || n < 1:
		return 0, fmt.Errorf("%w: the schema number reads %q", ErrCorrupt, val)
	case n > Schema:
		return 0, fmt.Errorf("%w: its schema is %d, this one reads up to %d; install the newer version again, or restore a snapshot from before", ErrNewerSchema, n, Schema)
	}
	return n, nil
}

// beginSchema writes the number into an empty store.
func beginSchema(e Engine) error {
	for _, b := range Buckets() {
		page, err := e.Scan(b, nil, nil, 1)
		if err != nil {
			return fmt.Errorf("check whether %v is empty: %w", b, err)
		}
		if len(page) > 0 {
			return fmt.Errorf("%w: it has records in %v but no schema number", ErrCorrupt, b)
		}
	}
	val := binary.BigEndian.AppendUint64(nil, 0)
	val = strconv.AppendInt(val, firstSchema, 10)
	if err := e.Commit([]Op{{Bucket: Meta, Key: schemaKey, Val: val}}); err != nil {
		return fmt.Errorf("write the schema number: %w", err)
	}
	return nil
}
