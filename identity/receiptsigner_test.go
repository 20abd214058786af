package identity

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
)

func newTestSigner(t *testing.T) *ReceiptSigner {
	t.Helper()
	keys, err := CreateKeys(t.TempDir(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return NewReceiptSigner(keys)
}

// testStatements returns n different statements about one task.
func testStatements(keys *Keys, id byte, n int) (out [][]byte) {
	for i := range n {
		s := proto.Statement{Fact: proto.FactDone, Task: proto.TaskID{id, byte(i)}, Node: keys.Peer(), Time: 1}
		out = append(out, s.Append(nil))
	}
	return out
}

// Results that arrive while a group is being written are signed together, and each gets
// the receipts of its own statements.
func TestReceiptsOfResultsAreSignedInGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestSigner(t)
		check := func(id byte, rs []*proto.Receipt, n int) {
			if len(rs) != n {
				t.Errorf("%d receipts instead of %d", len(rs), n)
			}
			for i, r := range rs {
				got, err := VerifyReceipt(NewVerifier(), r)
				if err != nil || got.Task != (proto.TaskID{id, byte(i)}) {
					t.Errorf("receipt %d of %d: of %v, %v", i, id, got.Task, err)
				}
			}
		}
		first, written := s.Sign(testStatements(s.keys, 1, 2))
		check(1, first, 2)

		signatures := make([]string, 20)
		var wg sync.WaitGroup
		for i := range signatures {
			wg.Go(func() {
				rs, written := s.Sign(testStatements(s.keys, byte(10+i), 3))
				defer written()
				check(byte(10+i), rs, 3)
				signatures[i] = string(rs[0].GetSignature())
			})
		}
		synctest.Wait() // all wait for the first group to be written
		for i, sig := range signatures {
			if sig != "" {
				t.Errorf("result %d was signed before the previous group was written", i)
			}
		}
		written()
		wg.Wait()
		for i, sig := range signatures {
			if sig != signatures[0] || sig == string(first[0].GetSignature()) {
				t.Errorf("result %d has a signature of its own, or that of the first group", i)
			}
		}
		last, written := s.Sign(testStatements(s.keys, 2, 1)) // does not wait
		check(2, last, 1)
		written()
	})
}

// A group contains at most as many receipts as one signature may cover; the rest forms
// the next group.
func TestGroupsOfReceiptsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestSigner(t)
		_, written := s.Sign(testStatements(s.keys, 1, 1))
		const results, each = proto.MaxGroup / 2, 3
		var mu sync.Mutex
		groups := map[string]int{}
		var wg sync.WaitGroup
		for range results {
			wg.Go(func() {
				rs, written := s.Sign(testStatements(s.keys, 2, each))
				mu.Lock()
				groups[string(rs[0].GetSignature())] += len(rs)
				mu.Unlock()
				written()
			})
		}
		synctest.Wait()
		written()
		wg.Wait()
		total := 0
		for _, n := range groups {
			total += n
			if n > proto.MaxGroup {
				t.Errorf("%d receipts under one signature", n)
			}
		}
		if total != results*each {
			t.Errorf("%d receipts instead of %d", total, results*each)
		}
	})
}
