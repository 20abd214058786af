package nuts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/balefire/balefire/store"
)

// bucketFile is where NutsDB keeps the names of its buckets. NutsDB never fsyncs it, and
// without it opens an empty store over a full log.
const bucketFile = "bucket.Meta"

// checkBucketFile checks that dir names every bucket and that NutsDB's id of each is its
// bucket number.
func checkBucketFile(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, bucketFile))
	if errors.Is(err, fs.ErrNotExist) {
		return &DamageError{Dir: dir, File: bucketFile, What: "the file is missing"}
	}
	if err != nil {
		return err
	}
	if err := checkBuckets(b); err != nil {
		return &DamageError{Dir: dir, File: bucketFile, What: err.Error()}
	}
	return nil
}

// checkBuckets reads the records of a bucket.Meta:
//
//	crc u32 | operation u16 | size u32 | id u64 | data structure u16 | name
func checkBuckets(b []byte) error {
	const head, fixed, create, btree = 10, 10, 1, 2
	seen := make(map[string]uint64)
	for len(b) > 0 {
		if len(b) < head+fixed {
			return errors.New("the last record is cut off")
		}
		size := int64(binary.LittleEndian.Uint32(b[6:]))
		if size < fixed || int64(len(b)) < head+size {
			return errors.New("a record is cut off")
		}
		rec := b[:head+size]
		b = b[head+size:]
		if crc32.ChecksumIEEE(rec[4:]) != binary.LittleEndian.Uint32(rec) {
			return errors.New("the checksum of a record is wrong")
		}
		if op, ds := binary.LittleEndian.Uint16(rec[4:]), binary.LittleEndian.Uint16(rec[head+8:]); op != create || ds != btree {
			return fmt.Errorf("a record is no plain bucket: operation %d, structure %d", op, ds)
		}
		seen[string(rec[head+fixed:])] = binary.LittleEndian.Uint64(rec[head:])
	}
	for _, bucket := range store.Buckets() {
		if id, ok := seen[bucket.String()]; !ok || id != uint64(bucket) {
			return fmt.Errorf("bucket %s has the id %d instead of %d", bucket, id, bucket)
		}
	}
	if len(seen) != len(store.Buckets()) {
		return fmt.Errorf("%d buckets instead of %d", len(seen), len(store.Buckets()))
	}
	return nil
}
