package backlog

import (
	"strings"
	"testing"

	"github.com/balefire/balefire/proto"
)

// newTenants returns a fixture whose groups are named TENANT/GROUP.
func newTenants(t *testing.T) *fixture {
	return newFixture(t, Config{Tenant: func(_ Key, r *proto.Record) string {
		name, _, _ := strings.Cut(string(r.Peer), "/")
		return name
	}})
}

// TestTenantsTakeTurns: within a class, over all groups, a tenant with many entries gets
// no more turns than one with few, which gets its turns as soon as it has entries. The
// oldest entry of a tenant is first, and a single tenant gets all turns.
func TestTenantsTakeTurns(t *testing.T) {
	w := newTenants(t)
	tenantOf := map[Key]string{}
	var order []Key
	add := func(group string, n int) {
		for range n {
			k := w.addOne(group, classNormal, nil)
			tenantOf[k], _, _ = strings.Cut(group, "/")
			order = append(order, k)
		}
	}
	take := func(n int, overShare func(string) bool) (names string) {
		t.Helper()
		for range n {
			it, ok := w.TakeAny(nil, overShare)
			if !ok {
				return names + "-"
			}
			names += tenantOf[it.Key]
		}
		return names
	}
	add("a/x", 10)
	add("a/y", 10)
	if got := take(6, nil); got != "aaaaaa" {
		t.Errorf("alone: %s", got)
	}
	add("b/x", 3)
	add("c/z", 2)
	if got := take(9, nil); strings.Count(got[:6], "b") != 2 || strings.Count(got[:6], "c") != 2 || strings.Count(got, "b") != 3 || got[7:] != "aa" {
		t.Errorf("three tenants: %s", got)
	}
	w.reopen()
	add("b/x", 1)
	if got := take(2, func(p string) bool { return p == "a" }); got != "bb" && got != "bc" && got != "cb" {
		t.Errorf("a is over its share: %s", got)
	}
	overShare := func(string) bool { return true }
	if got := take(3, overShare); strings.Contains(got, "-") {
		t.Errorf("nothing is taken when all are over their share: %s", got)
	}
}

// TestEntriesOfATenantAreTakenByAge: turns do not change the order within a tenant.
func TestEntriesOfATenantAreTakenByAge(t *testing.T) {
	w := newTenants(t)
	var want []Key
	for range 5 {
		want = append(want, w.addOne("a/x", classNormal, nil))
		w.addOne("b/x", classNormal, nil)
	}
	var got []Key
	for range 10 {
		if it, ok := w.TakeAny(func(g string) bool { return g == "a/x" }, nil); ok {
			got = append(got, it.Key)
		}
	}
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Fatalf("%v were taken, want %v", got, want)
		}
	}
}
