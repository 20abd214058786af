package identity

import (
	"cmp"
	"crypto/cipher"
	"crypto/ed25519"
	"crypto/hpke"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
)

const (
	nodeKeyFile = "node.key"
	sealingDir  = "kem"
	nodeKeyType = "BALEFIRE NODE KEY"
	sealingType = "BALEFIRE SEALING KEY"
)

// unwrapCacheLimit is how many encapsulations a node caches, usually one per sender and
// hour.
const unwrapCacheLimit = 4096

// Keys are the secrets of one node: its identity key and the keys that open content
// sealed for it. They are safe for concurrent use.
type Keys struct {
	private     ed25519.PrivateKey
	peer        proto.PeerID
	dir         string // of the key files; empty: in memory only
	unwrapCache *cache[[32]byte, cipher.AEAD]

	mu      sync.RWMutex
	sealing map[[8]byte]*sealingKey // by key id; old ones still open content
	current *sealingKey
}

// A sealingKey is one sealing key with its record.
type sealingKey struct {
	record  KeyRecord
	private hpke.PrivateKey
	signed  *proto.Signed
}

// NewKeys creates the keys of an in-memory node. A nil random means the system's
// randomness; a deterministic one yields the same keys every time.
func NewKeys(random io.Reader, now time.Time) *Keys {
	if random == nil {
		random = rand.Reader
	}
	k := &Keys{private: newNodeKey(random)}
	k.init()
	key, err := newSealingKey(random, defaultSuite(), 1, now)
	if err != nil {
		panic("identity: " + err.Error()) // random failed
	}
	k.add(key)
	return k
}

// CreateKeys creates the keys of a new node and writes them below dir. It returns
// ErrExists if dir already has a node key.
func CreateKeys(dir string, now time.Time) (*Keys, error) {
	path := filepath.Join(dir, nodeKeyFile)
	if _, err := os.Lstat(path); err == nil {
		return nil, fmt.Errorf("%w: %s", ErrExists, path)
	}
	last, err := sealingFiles(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("create keys: %w", err)
	}
	k := &Keys{private: newNodeKey(rand.Reader), dir: dir}
	k.init()
	seq := uint64(1)
	if len(last) > 0 { // of an interrupted start: never overwritten
		seq = last[len(last)-1] + 1
	}
	if err := k.rotate(defaultSuite(), seq, now); err != nil {
		return nil, fmt.Errorf("create keys: %w", err)
	}
	// The node key is written last: it marks the folder as complete.
	if err := writeKeyFile(path, nodeKeyType, k.private); err != nil {
		return nil, fmt.Errorf("create keys: %w", err)
	}
	return k, nil
}

// LoadKeys reads the files of CreateKeys. It refuses a file that is damaged or that other
// users can read (ErrKeyFile); the error tells the user what to do.
func LoadKeys(dir string) (*Keys, error) {
	private, err := readNodeKey(filepath.Join(dir, nodeKeyFile), nodeKeyType)
	if err != nil {
		return nil, fmt.Errorf("load keys: %w", err)
	}
	k := &Keys{private: private, dir: dir}
	k.init()
	seqs, err := sealingFiles(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load keys: %w", err)
	}
	for _, seq := range seqs {
		key, err := readSealingKey(sealingFile(dir, seq), seq)
		if err != nil {
			return nil, fmt.Errorf("load keys: %w", err)
		}
		k.add(key)
	}
	if k.current == nil {
		return nil, fmt.Errorf("load keys: %w: %s has no sealing key: restore the folder from a backup",
			ErrKeyFile, filepath.Join(dir, sealingDir))
	}
	return k, nil
}

func (k *Keys) init() {
	k.peer = publicOf(k.private)
	k.sealing = make(map[[8]byte]*sealingKey)
	k.unwrapCache = newCache[[32]byte, cipher.AEAD](unwrapCacheLimit)
}

// Peer returns the node's peer id.
func (k *Keys) Peer() proto.PeerID { return k.peer }

// PrivateKey returns the node key. Only the network host may use it.
func (k *Keys) PrivateKey() ed25519.PrivateKey { return k.private }

// KeyRecord returns the signed statement of the current sealing key. It must not be modified.
func (k *Keys) KeyRecord() *proto.Signed {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.current.signed
}

// SealingKey returns the content of KeyRecord.
func (k *Keys) SealingKey() KeyRecord {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.current.record
}

// Rotate creates a new sealing key and writes it to disk before using it. Content sealed
// to older keys still opens until [Keys.Expire] removes them. Its number is above those of
// all keys here, and by the time above those of keys that were lost: peers use the highest.
// Suite 0 means the default for this machine. If two calls run at the same time, one may
// fail with ErrExists.
func (k *Keys) Rotate(suite byte, now time.Time) error {
	seq := max(k.SealingKey().Seq+1, uint64(max(now.Unix(), 0)))
	if err := k.rotate(cmp.Or(suite, defaultSuite()), seq, now); err != nil {
		return fmt.Errorf("rotate the sealing key: %w", err)
	}
	return nil
}

func (k *Keys) rotate(suite byte, seq uint64, now time.Time) error {
	key, err := newSealingKey(rand.Reader, suite, seq, now)
	if err != nil {
		return err
	}
	if k.dir != "" {
		if err := writeSealingKey(sealingFile(k.dir, seq), key); err != nil {
			return err
		}
	}
	k.add(key)
	return nil
}

// How long a superseded sealing key stays in use. A peer that has not met this node since
// may seal to it for the longest lifetime of a task, and a task accepted then may have to
// be opened for as long again.
const (
	sealedFor = proto.MaxTTL + proto.Skew
	openedFor = 2*proto.MaxTTL + 4*proto.Skew
)

// superseded returns when the successor of key was created; ok is false for the newest.
// A successor of a clock that was behind counts from the time of the key itself. The caller
// holds mu.
func (k *Keys) superseded(key *sealingKey) (at time.Time, ok bool) {
	for _, next := range k.sealing {
		if next.record.Seq <= key.record.Seq {
			continue
		}
		made := next.record.NotBefore
		if made.Before(key.record.NotBefore) {
			made = key.record.NotBefore
		}
		if made = made.Add(proto.Skew); !ok || made.Before(at) {
			at, ok = made, true
		}
	}
	return at, ok
}

// outdated reports whether wrapped is for a key that must no longer be used for sealing:
// the sender has to rewrap its content key.
func (k *Keys) outdated(wrapped []byte, now time.Time) bool {
	if len(wrapped) < wrappedKeyHead {
		return false
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	key := k.sealing[[8]byte(wrapped[1:wrappedKeyHead])]
	if key == nil || key == k.current {
		return false
	}
	at, ok := k.superseded(key)
	return ok && now.After(at.Add(sealedFor))
}

// Expire removes sealing keys that no content can need any more, also from disk; see
// [Keys.Rotate]. It returns how many it removed.
func (k *Keys) Expire(now time.Time) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var old []*sealingKey
	for _, key := range k.sealing {
		if at, ok := k.superseded(key); ok && now.After(at.Add(openedFor)) {
			old = append(old, key)
		}
	}
	for i, key := range old {
		if k.dir != "" {
			if err := os.Remove(sealingFile(k.dir, key.record.Seq)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return i, fmt.Errorf("remove an old sealing key: %w", err)
			}
		}
		delete(k.sealing, key.record.ID)
	}
	return len(old), nil
}

// add signs the record of key and makes key the current one if it is the newest.
func (k *Keys) add(key *sealingKey) {
	key.record.Peer = k.peer
	key.signed = signDetails(k.private, domainKey, key.record.details())
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sealing[key.record.ID] = key
	if k.current == nil || key.record.Seq > k.current.record.Seq {
		k.current = key
	}
}

// find returns the sealing key with the given id.
func (k *Keys) find(id [8]byte) (*sealingKey, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	key, ok := k.sealing[id]
	return key, ok
}

func newNodeKey(random io.Reader) ed25519.PrivateKey {
	var seed [ed25519.SeedSize]byte
	if _, err := io.ReadFull(random, seed[:]); err != nil {
		panic("identity: no randomness: " + err.Error())
	}
	return ed25519.NewKeyFromSeed(seed[:])
}

func newSealingKey(random io.Reader, id byte, seq uint64, now time.Time) (*sealingKey, error) {
	suite, err := suiteOf(id)
	if err != nil {
		return nil, err
	}
	var seed [32]byte
	if _, err := io.ReadFull(random, seed[:]); err != nil {
		return nil, err
	}
	private, err := suite.kem.DeriveKeyPair(seed[:])
	if err != nil {
		return nil, err
	}
	from := now.Add(-proto.Skew).Truncate(time.Millisecond)
	return sealingKeyOf(private, id, seq, from, now.Add(MaxKeyLife).Truncate(time.Millisecond)), nil
}

func sealingKeyOf(private hpke.PrivateKey, suite byte, seq uint64, from, to time.Time) *sealingKey {
	public := private.PublicKey().Bytes()
	return &sealingKey{private: private, record: KeyRecord{
		Suite: suite, Public: public, ID: keyID(suite, public), Seq: seq, NotBefore: from, NotAfter: to,
	}}
}

// readNodeKey reads an Ed25519 key: its seed and its public half, which must match.
func readNodeKey(path, kind string) (ed25519.PrivateKey, error) {
	b, err := readKeyFile(path, kind)
	if err != nil {
		return nil, err
	}
	if len(b) != ed25519.PrivateKeySize {
		return nil, damaged(path, "a key of %d bytes", len(b))
	}
	key := ed25519.NewKeyFromSeed(b[:ed25519.SeedSize])
	if !key.Equal(ed25519.PrivateKey(b)) {
		return nil, damaged(path, "its public half does not match its seed")
	}
	return key, nil
}

// writeSealingKey writes suite 1 | number 8 | from 8 | to 8 | private key.
func writeSealingKey(path string, key *sealingKey) error {
	private, err := key.private.Bytes()
	if err != nil {
		return err
	}
	b := append(make([]byte, 0, 64), key.record.Suite)
	b = binary.BigEndian.AppendUint64(b, key.record.Seq)
	b = binary.BigEndian.AppendUint64(b, uint64(key.record.NotBefore.UnixMilli()))
	b = binary.BigEndian.AppendUint64(b, uint64(key.record.NotAfter.UnixMilli()))
	return writeKeyFile(path, sealingType, append(b, private...))
}

func readSealingKey(path string, seq uint64) (*sealingKey, error) {
	b, err := readKeyFile(path, sealingType)
	if err != nil {
		return nil, err
	}
	if len(b) < 25 || binary.BigEndian.Uint64(b[1:]) != seq {
		return nil, damaged(path, "it does not contain key number %d", seq)
	}
	suite, err := suiteOf(b[0])
	if err != nil {
		return nil, damaged(path, "%w", err)
	}
	private, err := suite.kem.NewPrivateKey(b[25:])
	if err != nil {
		return nil, damaged(path, "%w", err)
	}
	from := time.UnixMilli(int64(binary.BigEndian.Uint64(b[9:])))
	to := time.UnixMilli(int64(binary.BigEndian.Uint64(b[17:])))
	return sealingKeyOf(private, b[0], seq, from, to), nil
}

func sealingFile(dir string, seq uint64) string {
	return filepath.Join(dir, sealingDir, strconv.FormatUint(seq, 10)+".key")
}

// sealingFiles returns the numbers of the sealing keys below dir, ascending.
// Files with other names are ignored.
func sealingFiles(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(filepath.Join(dir, sealingDir))
	if err != nil {
		return nil, err
	}
	var seqs []uint64
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".key")
		seq, err := strconv.ParseUint(name, 10, 64)
		if ok && err == nil && seq > 0 && strconv.FormatUint(seq, 10) == name {
			seqs = append(seqs, seq)
		}
	}
	slices.Sort(seqs)
	return seqs, nil
}

// String names the node. No format verb prints the secrets of k.
func (k *Keys) String() string { return "keys of " + k.peer.String() }

// GoString is String.
func (k *Keys) GoString() string { return k.String() }
