package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"path/filepath"

	"github.com/balefire/balefire/proto"
)

const (
	rootKeyFile = "root.key"
	rootKeyType = "BALEFIRE MESH ROOT KEY"
)

// A Mesh is a private network of nodes. Every member holds a certificate that
// leads back to the root key.
type Mesh struct {
	ID   proto.MeshID
	Root ed25519.PublicKey
}

// NewMesh returns the mesh of a root key.
func NewMesh(root ed25519.PublicKey) (Mesh, error) {
	if len(root) != ed25519.PublicKeySize {
		return Mesh{}, fmt.Errorf("%w: a root key of %d bytes", ErrBadRecord, len(root))
	}
	if err := checkKey([32]byte(root)); err != nil {
		return Mesh{}, fmt.Errorf("root key: %w", err)
	}
	sum := sha256.Sum256(root)
	return Mesh{ID: proto.MeshID(sum[:16]), Root: root}, nil
}

// Fingerprint returns the second quarter of the SHA-256 of the root key, whose
// first half is the mesh's id: a ticket carries both.
func (m Mesh) Fingerprint() [8]byte {
	sum := sha256.Sum256(m.Root)
	return [8]byte(sum[16:24])
}

// A Root is the key that a mesh is based on. It admits nodes and admins; it can
// be kept off every machine that is online.
type Root struct {
	private ed25519.PrivateKey
	mesh    Mesh
}

// NewRoot creates a root in memory. A nil random means the system's.
func NewRoot(random io.Reader) *Root {
	if random == nil {
		random = rand.Reader
	}
	return rootOf(newNodeKey(random))
}

// CreateRoot creates the root of a new mesh and writes it below dir.
func CreateRoot(dir string) (*Root, error) {
	key := newNodeKey(rand.Reader)
	if err := writeKeyFile(filepath.Join(dir, rootKeyFile), rootKeyType, key); err != nil {
		return nil, fmt.Errorf("create mesh: %w", err)
	}
	return rootOf(key), nil
}

// LoadRoot reads what CreateRoot wrote, as strictly as LoadKeys.
func LoadRoot(dir string) (*Root, error) {
	key, err := readNodeKey(filepath.Join(dir, rootKeyFile), rootKeyType)
	if err != nil {
		return nil, fmt.Errorf("load mesh root: %w", err)
	}
	return rootOf(key), nil
}

func rootOf(key ed25519.PrivateKey) *Root {
	mesh, err := NewMesh(key.Public().(ed25519.PublicKey))
	if err != nil {
		panic("identity: " + err.Error()) // a key derived from a seed is never weak
	}
	return &Root{private: key, mesh: mesh}
}

// Mesh returns the mesh that r is the root of.
func (r *Root) Mesh() Mesh { return r.mesh }

// String names the mesh. It reveals nothing of the key, however r is printed.
func (r *Root) String() string { return "root of mesh " + r.mesh.ID.String() }

// GoString is String.
func (r *Root) GoString() string { return r.String() }
