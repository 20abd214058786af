package pairing

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/disk"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// membershipFile is in the folder of the keys.
const membershipFile = "membership.json"

// Errors for a folder that cannot run a node yet.
var (
	ErrNotInitialized = errors.New("no node in this folder")
	ErrUnpaired       = errors.New("this node belongs to no mesh")
	ErrPaired         = errors.New("this node already belongs to a mesh")
)

// An Identity is the result of Init.
type Identity struct {
	Name    string `json:"name"`
	ID      string `json:"id"`
	Mesh    string `json:"mesh,omitempty"`
	Created bool   `json:"created"`
}

// InitOptions configures Init.
type InitOptions struct {
	Dir     string
	Name    string // default: the host name, converted to a valid node name
	NewMesh bool   // create a mesh with this node as its first member and keep its root key here
	Clock   clock.Clock
}

// membership is the content of the file that states which mesh a node belongs to.
type membership struct {
	Name        string `json:"name"`
	Root        []byte `json:"root,omitempty"`        // the mesh root's public key
	Certificate []byte `json:"certificate,omitempty"` // proto.Signed
	// AfterGrace is set if the node issued the certificate to itself because the
	// previous one had expired, including its grace period, by the local clock. If that
	// clock was wrong, the node issues another one once it believes the right time: see
	// [Pairing.reissueSelf].
	AfterGrace bool `json:"after_grace,omitempty"`
	// Until is when the last certificate ended that was not issued like that. No clock makes
	// one that ends earlier.
	Until time.Time `json:"until,omitzero"`
}

// Init creates a node's keys in an empty folder and, if requested, the root key of a new
// mesh. It is idempotent and never overwrites a key.
func Init(o InitOptions) (Identity, error) {
	if o.Clock.IsZero() {
		o.Clock = clock.System()
	}
	m, err := readMembership(o.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return Identity{}, fmt.Errorf("init: %w", err)
	}
	if len(m.Root) > 0 && o.Name != "" && o.Name != m.Name {
		return Identity{}, fmt.Errorf("init: %w: this node is already a member named %s and cannot be renamed: use another folder (--dir) for another node", wire.ErrRefused, m.Name)
	}
	if m.Name == "" || len(m.Root) == 0 && o.Name != "" {
		if m.Name, err = chooseName(o.Name); err != nil {
			return Identity{}, fmt.Errorf("init: %w", err)
		}
	}
	keys, created, err := ensureKeys(o.Dir, o.Clock)
	if err != nil {
		return Identity{}, fmt.Errorf("init: %w", err)
	}
	if o.NewMesh && len(m.Root) == 0 {
		if err := m.foundMesh(filepath.Join(o.Dir, datadir.Identity), keys, o.Clock.Now()); err != nil {
			return Identity{}, fmt.Errorf("init: %w", err)
		}
	}
	if err := m.write(o.Dir); err != nil {
		return Identity{}, fmt.Errorf("init: %w", err)
	}
	id := Identity{Name: m.Name, ID: keys.Peer().String(), Created: created}
	if mesh, err := m.mesh(); err == nil {
		id.Mesh = mesh.ID.String()
	}
	return id, nil
}

// foundMesh creates a mesh whose first member and admin is this node.
func (m *membership) foundMesh(dir string, keys *identity.Keys, now time.Time) error {
	root, err := identity.LoadRoot(dir)
	if errors.Is(err, os.ErrNotExist) {
		root, err = identity.CreateRoot(dir)
	}
	if err != nil {
		return err
	}
	roles := append(identity.DefaultRoles(), identity.RoleAdmin)
	cert, err := root.IssueMember(identity.Member{Peer: keys.Peer(), Name: m.Name, Roles: roles}, now)
	if err != nil {
		return err
	}
	m.Root = root.Mesh().Root
	m.Certificate, err = proto.Encode(nil, cert)
	return err
}

func ensureKeys(dir string, clk clock.Clock) (keys *identity.Keys, created bool, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, false, err
	}
	keys, err = identity.LoadKeys(filepath.Join(dir, datadir.Identity))
	if errors.Is(err, os.ErrNotExist) {
		if err := lostKey(dir); err != nil {
			return nil, false, err
		}
		keys, err = identity.CreateKeys(filepath.Join(dir, datadir.Identity), clk.Now())
		return keys, true, err
	}
	return keys, false, err
}

// lostKey returns an error if a folder without a key belongs to a member: with a new key
// its certificate would be that of another node.
func lostKey(dir string) error {
	m, err := readMembership(dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(m.Root) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	at := filepath.Join(dir, datadir.Identity)
	return fmt.Errorf("%w: the key of %s is missing in %s: restore the folder from a backup, or remove %s and join again with a ticket", wire.ErrRefused, m.Name, at, filepath.Join(at, membershipFile))
}

// Credentials are what a node proves its identity with.
type Credentials struct {
	Keys *identity.Keys
	Mesh identity.Mesh
	Self identity.Member
	// AfterGrace is set if the node issued its certificate to itself after the end of the
	// previous one.
	AfterGrace bool
}

// Bounds returns when a clock of this node can be right: while its certificate is valid,
// with some room on both sides; its beginning has passed. A certificate of its own making proves no beginning.
func (c Credentials) Bounds() (from, passed, until time.Time) {
	if !c.AfterGrace {
		passed = c.Self.NotBefore
		from = passed.Add(-identity.EarlyGrace)
	}
	return from, passed, ValidUntil(c.Self)
}

// ValidUntil returns the end of the grace period of a certificate.
func ValidUntil(m identity.Member) time.Time { return m.NotAfter.Add(identity.MemberGrace) }

// Load reads the keys, the mesh and the certificate of the node in dir. It changes nothing:
// nobody knows yet whether now is right.
func Load(dir string, now time.Time) (Credentials, error) {
	keys, err := identity.LoadKeys(filepath.Join(dir, datadir.Identity))
	if errors.Is(err, os.ErrNotExist) {
		if err := lostKey(dir); err != nil {
			return Credentials{}, err
		}
		if _, err := os.Stat(filepath.Join(dir, datadir.Store)); err == nil {
			return Credentials{}, fmt.Errorf("%w: %s has a store and no key: restore %s from a backup, or join with a ticket", ErrNotInitialized, dir, datadir.Identity)
		}
		return Credentials{}, fmt.Errorf("%w: %s is empty: run balefire-node init --new-mesh, or join with a ticket", ErrNotInitialized, dir)
	}
	if err != nil {
		return Credentials{}, err
	}
	m, err := readMembership(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return Credentials{}, err
	}
	if len(m.Root) == 0 {
		return Credentials{}, fmt.Errorf("%w: run balefire-node join TICKET, or init --new-mesh to create a mesh", ErrUnpaired)
	}
	mesh, err := m.mesh()
	if err != nil {
		return Credentials{}, err
	}
	var cert proto.Signed
	if err := proto.Decode(m.Certificate, &cert); err != nil {
		return Credentials{}, fmt.Errorf("own certificate: %w", err)
	}
	self, err := mesh.VerifyMember(&cert, now)
	if err != nil && !errors.Is(err, identity.ErrExpired) && !errors.Is(err, identity.ErrNotYet) { // a wrong clock must not keep a node from starting
		return Credentials{}, fmt.Errorf("own certificate: %w", err)
	}
	if self.Peer != keys.Peer() {
		return Credentials{}, fmt.Errorf("own certificate: issued to %s, but this node's key is %s: the two files do not belong together", self.Peer, keys.Peer())
	}
	return Credentials{keys, mesh, self, m.AfterGrace}, nil
}

func (m membership) mesh() (identity.Mesh, error) {
	mesh, err := identity.NewMesh(ed25519.PublicKey(m.Root))
	if err != nil {
		return mesh, fmt.Errorf("read %s: %w", membershipFile, err)
	}
	return mesh, nil
}

func readMembership(dir string) (membership, error) {
	var m membership
	path := filepath.Join(dir, datadir.Identity, membershipFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("read %s: %w: restore it from a backup or remove it and join again", path, err)
	}
	return m, nil
}

func (m membership) write(dir string) error {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return disk.WriteFile(filepath.Join(dir, datadir.Identity, membershipFile), append(b, '\n'))
}

// chooseName returns want, or a valid node name derived from the host name.
func chooseName(want string) (string, error) {
	if want != "" {
		return want, checkName(want)
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("no name given and the host name is unknown: %w", err)
	}
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	host = strings.Trim(regexp.MustCompile(`[^a-z0-9-]+`).ReplaceAllString(host, "-"), "-")
	if !identity.IsLabel(host) {
		host = "node"
	}
	return host, nil
}
