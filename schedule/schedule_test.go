package schedule

import (
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/balefire/balefire/proto"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	x, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return x.UTC()
}

func TestNext(t *testing.T) {
	tests := []struct {
		name, text, zone, after string
		want                    []string
	}{
		{"every five minutes", "*/5 * * * *", "UTC", "2026-01-01T00:01:00Z", []string{"2026-01-01T00:05:00Z", "2026-01-01T00:10:00Z"}},
		{"daily in a zone", "30 2 * * *", "Europe/Paris", "2026-01-01T00:00:00Z", []string{"2026-01-01T01:30:00Z", "2026-01-02T01:30:00Z"}},
		{"no zone is UTC", "@daily", "", "2026-01-01T00:00:00Z", []string{"2026-01-02T00:00:00Z"}},
		{"an hour that is left out comes behind the gap", "30 2 * * *", "Europe/Paris", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		{"all times of it come once", "*/15 2 * * *", "Europe/Paris", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"}},
		{"also with a time at its end", "0 2,3 * * *", "Europe/Paris", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"}},
		{"an hour that comes twice counts once", "30 2 * * *", "Europe/Paris", "2026-10-24T12:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		{"also asked in between", "30 2 * * *", "Europe/Paris", "2026-10-25T01:10:00Z", []string{"2026-10-26T01:30:00Z"}},
		{"every hour is by the time that passes", "30 * * * *", "Europe/Paris", "2026-10-25T00:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"}},
		{"also over a gap", "30 * * * *", "Europe/Paris", "2026-03-29T00:00:00Z", []string{"2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z"}},
		{"a midnight that does not exist", "0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00:00Z", []string{"2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"}},
		{"half an hour of change", "15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", []string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
		{"the last of February", "0 12 29 2 *", "UTC", "2026-01-01T00:00:00Z", []string{"2028-02-29T12:00:00Z"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Parse(tt.text, tt.zone)
			if err != nil {
				t.Fatal(err)
			}
			x := at(t, tt.after)
			for _, want := range tt.want {
				if x = p.Next(x); !x.Equal(at(t, want)) {
					t.Fatalf("next is %s, want %s", x.Format(time.RFC3339), want)
				}
			}
		})
	}
}

func TestNoPlan(t *testing.T) {
	for text, zone := range map[string]string{
		"": "UTC", "* * * *": "UTC", "61 * * * *": "UTC", "* * * * * *": "UTC", "@every 5m": "UTC", "@reboot": "UTC", "0 0 30 2 *": "UTC",
		"CRON_TZ=Europe/Paris 0 0 * * *": "UTC", "0 0 * * *": "Mars/Base", "1 0 * * *": "Local", "2 0 * * *": "../../etc/passwd",
	} {
		if _, err := Parse(text, zone); !errors.Is(err, ErrPlan) {
			t.Errorf("%q in %q: %v", text, zone, err)
		}
	}
}

func TestDue(t *testing.T) {
	p, err := Parse("*/10 * * * *", "UTC")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, mark, now string
		missed          proto.MissedRuns
		limit           int
		want            []string
		left            int
	}{
		{"nothing yet", "2026-01-01T00:00:00Z", "2026-01-01T00:09:59Z", proto.MissedSkip, 0, nil, 0},
		{"now", "2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z", proto.MissedSkip, 0, []string{"2026-01-01T00:10:00Z"}, 0},
		{"a minute late is not missed", "2026-01-01T00:00:00Z", "2026-01-01T00:11:00Z", proto.MissedSkip, 0, []string{"2026-01-01T00:10:00Z"}, 0},
		{"missed ones are skipped", "2026-01-01T00:00:00Z", "2026-01-01T00:35:00Z", proto.MissedSkip, 0, nil, 3},
		{"but not the one that is due", "2026-01-01T00:00:00Z", "2026-01-01T00:30:30Z", proto.MissedSkip, 0, []string{"2026-01-01T00:30:00Z"}, 2},
		{"the newest is made up for", "2026-01-01T00:00:00Z", "2026-01-01T00:35:00Z", proto.MissedOnce, 0, []string{"2026-01-01T00:30:00Z"}, 2},
		{"all are", "2026-01-01T00:00:00Z", "2026-01-01T00:35:00Z", proto.MissedAll, 10, []string{"2026-01-01T00:10:00Z", "2026-01-01T00:20:00Z", "2026-01-01T00:30:00Z"}, 0},
		{"up to a limit", "2026-01-01T00:00:00Z", "2026-01-01T00:35:00Z", proto.MissedAll, 2, []string{"2026-01-01T00:20:00Z", "2026-01-01T00:30:00Z"}, 1},
		{"a clock that was set back", "2026-01-01T01:00:00Z", "2026-01-01T00:35:00Z", proto.MissedAll, 2, nil, 0},
		{"years ago", "2020-01-01T00:00:00Z", "2026-01-01T00:05:00Z", proto.MissedAll, 1, []string{"2026-01-01T00:00:00Z"}, 31*144 - 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fire, left := p.Due(at(t, tt.mark), at(t, tt.now), tt.missed, tt.limit)
			var got []string
			for _, x := range fire {
				got = append(got, x.Format(time.RFC3339))
			}
			if !slices.Equal(got, tt.want) || left != tt.left {
				t.Errorf("%v and %d left out, want %v and %d", got, left, tt.want, tt.left)
			}
		})
	}
}

// However now moves, no time is returned twice as long as the mark is kept.
func TestDueGivesEachTimeOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, err := Parse(rapid.SampledFrom([]string{"*/7 * * * *", "30 2 * * *", "0 0 1 * *", "15 */3 * * 1-5"}).Draw(t, "text"),
			rapid.SampledFrom([]string{"UTC", "Europe/Paris", "Australia/Lord_Howe"}).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		now := time.Date(2026, 3, 28, 0, 0, 0, 0, time.UTC)
		mark, met := now, map[time.Time]bool{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(-3600, 90_000).Draw(t, "step")) * time.Second)
			fire, _ := p.Due(mark, now, proto.MissedRuns(rapid.IntRange(0, 2).Draw(t, "missed")), 5)
			for _, x := range fire {
				if met[x] || !x.After(mark) || x.After(now) {
					t.Fatalf("%s is given out again, or out of order", x)
				}
				met[x], mark = true, x
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("30 2 * * *", "Europe/Paris")
	f.Add("@daily", "")
	f.Add("*/5 1-3,7 L ? JAN-MAR", "UTC")
	f.Fuzz(func(t *testing.T, text, zone string) {
		p, err := Parse(text, zone)
		if err != nil {
			if !errors.Is(err, ErrPlan) {
				t.Errorf("%v has no type", err)
			}
			return
		}
		start := time.Unix(1_700_000_000, 0)
		if next := p.Next(start); !next.IsZero() && !next.After(start) {
			t.Errorf("%q in %q: %s is not after %s", text, zone, next, start)
		}
	})
}
