package identity

import (
	"errors"
	"testing"

	"github.com/balefire/balefire/proto"
)

// A deed is valid if the current home signed a handoff, or an admin signed the creation
// or seizure of a queue, and in no other case.
func TestDeeds(t *testing.T) {
	root, admin, worker := NewRoot(seeded(1)), NewKeys(seeded(2), today), NewKeys(seeded(3), today)
	mesh := root.Mesh()
	cert := func(k *Keys, roles ...string) *proto.Signed {
		s, err := root.IssueMember(Member{Peer: k.Peer(), Name: "n", Roles: roles}, today)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	adminCert, workerCert := cert(admin, RoleAdmin), cert(worker, RoleWork)
	handed := Deed{Queue: "build", Generation: 2, Root: [32]byte{1}, From: worker.Peer(), To: admin.Peer()}
	seized := Deed{Queue: "build", Generation: 3, Root: [32]byte{1}, From: worker.Peer(), To: admin.Peer(), Seized: true}
	made := Deed{Queue: "build", Generation: 1, To: worker.Peer()}
	tests := []struct {
		name string
		sign func() (*proto.Signed, error)
		err  error
	}{
		{"the home hands over", func() (*proto.Signed, error) { return worker.SignDeed(mesh, handed) }, nil},
		{"another hands over", func() (*proto.Signed, error) { return admin.SignDeed(mesh, handed) }, ErrSignature},
		{"an admin seizes", func() (*proto.Signed, error) { return admin.SignDeedAsAdmin(mesh, adminCert, seized) }, nil},
		{"the root seizes", func() (*proto.Signed, error) { return root.SignDeed(seized) }, nil},
		{"a worker seizes", func() (*proto.Signed, error) { return worker.SignDeed(mesh, seized) }, ErrNotAdmin},
		{"a worker seizes with its certificate", func() (*proto.Signed, error) { return worker.SignDeedAsAdmin(mesh, workerCert, seized) }, ErrNotAdmin},
		{"a worker seizes with an admin's certificate", func() (*proto.Signed, error) { return worker.SignDeedAsAdmin(mesh, adminCert, seized) }, ErrSignature},
		{"an admin makes it", func() (*proto.Signed, error) { return admin.SignDeedAsAdmin(mesh, adminCert, made) }, nil},
		{"a worker makes it", func() (*proto.Signed, error) { return worker.SignDeed(mesh, made) }, ErrNotAdmin},
		{"an admin confirms, after a seizure", func() (*proto.Signed, error) {
			return admin.SignDeedAsAdmin(mesh, adminCert, Deed{Queue: "build", Generation: 4, Root: [32]byte{1}, To: worker.Peer(), Seizure: 3})
		}, nil},
		{"an admin confirms, after a seizure that is to come", func() (*proto.Signed, error) {
			return admin.SignDeedAsAdmin(mesh, adminCert, Deed{Queue: "build", Generation: 4, Root: [32]byte{1}, To: worker.Peer(), Seizure: 5})
		}, ErrBadRecord},
		{"the home hands over, after a seizure that it states", func() (*proto.Signed, error) {
			return worker.SignDeed(mesh, Deed{Queue: "build", Generation: 4, Root: [32]byte{1}, From: worker.Peer(), To: admin.Peer(), Seizure: 3})
		}, ErrBadRecord},
		{"of no root", func() (*proto.Signed, error) {
			return admin.SignDeedAsAdmin(mesh, adminCert, Deed{Queue: "build", Generation: 4, To: worker.Peer()})
		}, ErrBadRecord},
		{"of no queue", func() (*proto.Signed, error) {
			return worker.SignDeed(mesh, Deed{Generation: 2, From: worker.Peer(), To: admin.Peer()})
		}, ErrBadRecord},
		{"of no generation", func() (*proto.Signed, error) {
			return worker.SignDeed(mesh, Deed{Queue: "build", From: worker.Peer(), To: admin.Peer()})
		}, ErrBadRecord},
		{"to itself", func() (*proto.Signed, error) {
			return worker.SignDeed(mesh, Deed{Queue: "build", Generation: 2, From: worker.Peer(), To: worker.Peer()})
		}, ErrBadRecord},
		{"of another mesh", func() (*proto.Signed, error) {
			s, err := worker.SignDeed(NewRoot(seeded(9)).Mesh(), handed)
			if err != nil {
				return nil, err
			}
			_, err = mesh.VerifyDeed(s)
			return s, err
		}, ErrWrongMesh},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := tt.sign()
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if err != nil {
				return
			}
			if _, err := mesh.VerifyDeed(s); err != nil {
				t.Fatal(err)
			}
			for i := range s.Details {
				bent := &proto.Signed{Details: append([]byte(nil), s.Details...), Signature: s.Signature, Signer: s.Signer, Issuer: s.Issuer}
				bent.Details[i] ^= 1
				if _, err := mesh.VerifyDeed(bent); err == nil {
					t.Fatalf("accepted with byte %d changed", i)
				}
			}
		})
	}
}

// FuzzDeed checks that unauthorized deeds are refused and that an accepted one names a
// queue and a change of its home.
func FuzzDeed(f *testing.F) {
	root, keys := NewRoot(seeded(1)), NewKeys(seeded(2), today)
	mesh := root.Mesh()
	for _, d := range []Deed{
		{Queue: "build", Generation: 2, Root: [32]byte{1}, From: keys.Peer(), To: proto.PeerID{7}},
		{Queue: "build", Generation: 3, Root: [32]byte{1}, From: proto.PeerID{7}, To: keys.Peer(), Seized: true},
		{Queue: "build", Generation: 1, To: keys.Peer()},
		{Queue: "build", Generation: 3, Root: [32]byte{1}, To: keys.Peer(), Seizure: 2},
	} {
		details, err := proto.Encode(nil, d.message(mesh))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(true, details)
		f.Add(false, details)
	}
	f.Fuzz(func(t *testing.T, byRoot bool, details []byte) {
		key := keys.private
		if byRoot {
			key = root.private
		}
		d, err := mesh.VerifyDeed(signDetails(key, domainDeed, details))
		if err != nil {
			return
		}
		if d.Queue == "" || d.Generation == 0 || d.To.IsZero() || (d.Seized || d.From.IsZero()) != d.Admin || d.From.IsZero() && d.Seized || !d.Admin && d.From != keys.Peer() {
			t.Fatalf("a deed was accepted: %+v", d)
		}
		if d.Admin != byRoot {
			t.Fatalf("%+v was signed by the root: %v", d, byRoot)
		}
	})
}
