package bodies

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// A body of new work that would use the reserve of the disk is refused before its first
// byte, whatever MaxTotal is; a result is not (I13).
func TestOfferLeavesTheReserve(t *testing.T) {
	const gb = 1e9
	free := int64(10 * gb)
	m := clock.NewManual(time.Unix(1e9, 0))
	s := openStore(t, t.TempDir(), Config{MaxTotal: 30 * gb, Reserve: 5 * gb, Clock: m.Clock(), Space: func() (int64, int64, error) { return free, 100 * gb, nil }})
	offer := func(size int64, essential bool) error {
		chunks := size / (proto.ChunkSize + tagSize)
		in, err := s.Receive(Manifest{Size: chunks * (proto.ChunkSize + tagSize), Chunk: proto.ChunkSize, Root: [32]byte{byte(chunks)}}, Terms{Essential: essential})
		if err != nil {
			return err
		}
		return in.Close()
	}
	if err := offer(25*gb, false); !errors.Is(err, ErrFull) {
		t.Errorf("25 GB, of which 5 fit: %v", err)
	}
	wantUsage(t, s, 0, 0)
	if err := offer(4*gb, false); err != nil {
		t.Errorf("4 GB, of which 5 fit: %v", err)
	}
	if err := offer(7*gb, true); err != nil {
		t.Errorf("a result of 7 GB: %v", err)
	}
	free = 8 * gb
	m.Advance(time.Second)
	if err := offer(4*gb, false); !errors.Is(err, ErrFull) {
		t.Errorf("4 GB, of which 3 fit by now: %v", err)
	}
}

// On a disk that is smaller than MaxTotal an origin may refer to nine times what is free above
// the reserve, so that others find space too.
func TestShareIsOfWhatTheDiskHolds(t *testing.T) {
	const gb, chunk = 1e9, proto.ChunkSize + tagSize
	for _, reserve := range []int64{0, 5 * gb} {
		s := openStore(t, t.TempDir(), Config{MaxTotal: 1000 * gb, Reserve: reserve, Space: func() (int64, int64, error) { return 10*gb + reserve, 100 * gb, nil }})
		offer := func(origin byte, size int64) error {
			in, err := s.Receive(Manifest{Size: size / chunk * chunk, Chunk: proto.ChunkSize, Root: [32]byte{origin}}, Terms{Origin: proto.PeerID{origin}})
			if err != nil {
				return err
			}
			return in.Close()
		}
		if err := offer(1, 9.5*gb); !errors.Is(err, ErrShare) {
			t.Errorf("9.5 GB of 10 with a reserve of %d bytes: %v", reserve, err)
		}
		if err := offer(2, 8.5*gb); err != nil {
			t.Errorf("8.5 GB of 10 with a reserve of %d bytes: %v", reserve, err)
		}
	}
}

// When something else fills the disk, what is being received or sealed stops before the
// reserve. What it has stays, for when there is space again.
func TestWritesLeaveTheReserve(t *testing.T) {
	const reserve = 100 * testChunk
	from := openStore(t, t.TempDir(), Config{})
	ref := seal(t, from, random(1, 20*testChunk))
	src := source(t, from, &ref)
	all := pieces(t, src)
	free, asked := int64(reserve+40*testChunk), 0
	m := clock.NewManual(time.Unix(1e9, 0))
	s := openStore(t, t.TempDir(), Config{MaxTotal: 1 << 40, Reserve: reserve, Clock: m.Clock(), Space: func() (int64, int64, error) {
		asked++
		return free, 1 << 40, nil
	}})
	in := receive(t, s, src.Manifest)
	put := func() (n int, err error) {
		for _, p := range all[in.Durable():] {
			if err := in.Put(p.index, p.chunk, p.path); err != nil {
				return n, errors.Join(err, in.Sync())
			}
			n++
		}
		return n, nil
	}
	free = reserve + 5*testChunk
	m.Advance(time.Second)
	if n, err := put(); n != 4 || !errors.Is(err, ErrFull) {
		t.Errorf("%d chunks were taken, want 4 as each is larger than its plain bytes: %v", n, err)
	}
	if asked != 2 {
		t.Errorf("asked for the free space %d times in one second, want once, and at the offer", asked)
	}
	if _, _, err := s.Seal(t.Context(), bytes.NewReader(random(2, 3*testChunk)), SealOptions{Suite: AES, chunk: testChunk}); !errors.Is(err, ErrFull) {
		t.Errorf("a body that is submitted: %v", err)
	}
	if _, _, err := s.Seal(t.Context(), bytes.NewReader(random(2, 3*testChunk)), SealOptions{Suite: AES, chunk: testChunk, essential: true}); err != nil {
		t.Errorf("a result: %v", err)
	}
	wantUsage(t, s, 1, 1)
	free = reserve + 40*testChunk
	m.Advance(time.Second)
	if n, err := put(); n != 16 || err != nil {
		t.Errorf("%d chunks were taken when there was space again, want 16: %v", n, err)
	}
	if err := in.Commit(); err != nil {
		t.Error(err)
	}
}

// A part of new work that meets the end of the disk is removed: results need the space.
func TestFullDiskGivesThePartUp(t *testing.T) {
	for _, point := range []string{"write", "sync"} {
		for _, essential := range []bool{false, true} {
			from := openStore(t, t.TempDir(), Config{})
			ref := seal(t, from, random(1, 3*testChunk))
			src := source(t, from, &ref)
			all := pieces(t, src)
			full := false
			s := openStore(t, t.TempDir(), Config{fault: func(op string) error {
				if full && op == point {
					return syscall.ENOSPC
				}
				return nil
			}})
			in, err := s.Receive(src.Manifest, Terms{Origin: proto.PeerID{1}, Essential: essential})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(in.Put(0, all[0].chunk, all[0].path), in.Sync()); err != nil {
				t.Fatal(err)
			}
			full = true
			err = in.Put(1, all[1].chunk, all[1].path)
			if err == nil {
				err = in.Sync()
			}
			if !errors.Is(err, ErrFull) {
				t.Errorf("%s on a full disk: %v", point, err)
			}
			if err := in.Close(); err != nil {
				t.Error(err)
			}
			parts := 0
			if essential {
				parts = 1
			}
			wantUsage(t, s, 0, parts)
			if got := len(s.charges); got != parts {
				t.Errorf("%s: %d origins are charged, want %d", point, got, parts)
			}
		}
	}
}
