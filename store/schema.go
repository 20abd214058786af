package store

import (
	"encoding/binary"
	"fmt"
	"strconv"
)

// Schema is the number of the layout that this version reads and writes.
const Schema = 1

// schemaKey holds the schema number in Meta, in decimal.
var schemaKey = []byte("store/schema")

// checkSchema refuses a store that this version cannot read, and marks an empty one.
func checkSchema(e Engine) error {
	raw, ok, err := e.Get(Meta, schemaKey)
	if err != nil {
		return fmt.Errorf("read the schema number: %w", err)
	}
	if !ok {
		return beginSchema(e)
	}
	_, val, err := unwrap(raw)
	if err != nil {
		return fmt.Errorf("read the schema number: %w", err)
	}
	n, err := strconv.Atoi(string(val))
	switch {
	case err != nil || n < 1:
		return fmt.Errorf("%w: the schema number reads %q", ErrCorrupt, val)
	case n > Schema:
		return fmt.Errorf("%w: its schema is %d, this one reads up to %d; install the newer version again, or restore a snapshot from before", ErrNewerSchema, n, Schema)
	}
	return nil
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
	val = strconv.AppendInt(val, Schema, 10)
	if err := e.Commit([]Op{{Bucket: Meta, Key: schemaKey, Val: val}}); err != nil {
		return fmt.Errorf("write the schema number: %w", err)
	}
	return nil
}
