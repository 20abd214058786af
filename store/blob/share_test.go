package blob

import (
	"errors"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
)

// part writes n bytes of a part and leaves it.
func part(t *testing.T, d *Dir, name string, n int) error {
	t.Helper()
	w, err := d.Resume(name)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	_, err = w.Write(make([]byte, n))
	return err
}

// TestOneOwnersPartsLeaveSpaceForOthers: an owner may hold nine times the free bytes, in
// blobs and unfinished parts, also after a restart; another owner still has space. A part
// that has not grown for an hour is removed when space is needed, the oldest first; a
// growing one stays.
func TestOneOwnersPartsLeaveSpaceForOthers(t *testing.T) {
	m := clock.NewManual(time.Unix(1e9, 0))
	path := t.TempDir()
	cfg := Config{MaxTotal: 1000, Clock: m.Clock()}
	d := open(t, path, cfg)
	mallory, alpha := d.Of("mallory"), d.Of("alpha")
	if err := mallory.Put("whole", make([]byte, 400)); err != nil {
		t.Fatal(err)
	}
	if err := part(t, mallory, "stalled", 400); err != nil {
		t.Fatal(err)
	}
	if err := part(t, mallory, "more", 150); !errors.Is(err, ErrShare) || !errors.Is(err, ErrFull) {
		t.Errorf("beyond its share: %v", err)
	}
	if err := part(t, mallory, "grows", 100); err != nil {
		t.Errorf("nine tenths: %v", err)
	}
	if err := alpha.Put("small", make([]byte, 50)); err != nil {
		t.Errorf("another owner: %v", err)
	}
	d.Delete("small")
	if err := alpha.Fits(300); !errors.Is(err, ErrFull) || errors.Is(err, ErrShare) {
		t.Errorf("300 bytes where 100 are free: %v", err)
	}

	d.Close() // and a restart
	d = open(t, path, cfg)
	mallory, alpha = d.Of("mallory"), d.Of("alpha")
	for _, name := range []string{"whole", "stalled", "grows"} {
		d.SetOwner(name, "mallory")
	}
	if err := part(t, mallory, "more", 10); !errors.Is(err, ErrShare) {
		t.Errorf("after a restart, beyond its share: %v", err)
	}
	m.Advance(50 * time.Minute)
	if err := alpha.Fits(300); !errors.Is(err, ErrFull) {
		t.Errorf("a part of 50 minutes was removed: %v", err)
	}
	d.Delete("more")
	if err := part(t, d, "grows", 1); err != nil {
		t.Error(err)
	}
	m.Advance(15 * time.Minute)
	if err := alpha.Put("body", make([]byte, 300)); err != nil {
		t.Errorf("after an hour: %v", err)
	}
	w, err := mallory.Resume("stalled")
	if err != nil || w.Offset() != 0 {
		t.Errorf("the stalled part has %d bytes, %v", w.Offset(), err)
	}
	w.Abort()
	if w, err := mallory.Resume("grows"); err != nil || w.Offset() != 101 {
		t.Errorf("the part that grew has %d bytes, %v", w.Offset(), err)
	} else {
		w.Close()
	}
	if u := d.Usage(); u.Bytes != 801 || d.ownerBytes["mallory"] != 501 || d.ownerBytes["alpha"] != 300 {
		t.Errorf("usage %+v, of which %v", u, d.ownerBytes)
	}
	for _, name := range []string{"whole", "grows", "body"} {
		if err := d.Delete(name); err != nil {
			t.Error(err)
		}
	}
	if len(d.ownerBytes)+len(d.owners) != 0 || d.Usage().Bytes != 0 {
		t.Errorf("in an empty folder %v is held by %v", d.ownerBytes, d.owners)
	}
}

// TestResultsAreTakenBeyondTheLimit (I13): results are bounded only by the disk, of which
// one owner may hold nine times the free space.
func TestResultsAreTakenBeyondTheLimit(t *testing.T) {
	disk := int64(1000)
	d := open(t, t.TempDir(), Config{MaxTotal: 100, Space: func() (int64, int64, error) { return disk, 10_000, nil }})
	put(t, d, "full", string(make([]byte, 100)))
	results := d.Essential().Of("worker")
	if err := results.Put("result", make([]byte, 500)); err != nil {
		t.Errorf("a result beyond the limit: %v", err)
	}
	disk -= 500
	if err := results.Put("huge", make([]byte, 460)); !errors.Is(err, ErrShare) {
		t.Errorf("a result that fills the disk: %v", err)
	}
	if err := d.Essential().Of("other").Put("next", make([]byte, 400)); err != nil {
		t.Errorf("the result of another: %v", err)
	}
	if err := d.Of("worker").Put("task", make([]byte, 1)); !errors.Is(err, ErrFull) {
		t.Errorf("a task beyond the limit: %v", err)
	}
}
