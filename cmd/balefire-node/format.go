package main

import (
	"cmp"
	"fmt"
	"strconv"
	"time"
)

// formatDuration formats a duration with two or three digits.
func formatDuration(d time.Duration) string {
	switch {
	case d <= 0:
		return "0s"
	case d < time.Millisecond:
		return fmt.Sprintf("%dµs", d.Microseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

// formatSeconds formats a measured number of seconds; 0 is empty.
func formatSeconds(s float64) string {
	if s <= 0 {
		return ""
	}
	return formatDuration(seconds(s))
}

// ago formats the time since t.
func (w *app) ago(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return formatDuration(w.clock.Now().Sub(*t))
}

// formatSize formats a number of bytes with three digits.
func formatSize[N int64 | uint64 | int](n N) string {
	f, unit := float64(n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if f < 1024 {
			break
		}
		f, unit = f/1024, u
	}
	if unit == "B" || f >= 100 {
		return fmt.Sprintf("%.0f %s", f, unit)
	}
	return fmt.Sprintf("%.1f %s", f, unit)
}

// percent formats a fraction of 1.
func percent(share float64) string { return fmt.Sprintf("%.1f%%", share*100) }

// orDash returns a dash for an empty string.
func orDash(s string) string { return cmp.Or(s, "-") }

// yesNo formats a bool for people.
func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// formatScore formats a score with three digits.
func formatScore(f float64) string { return strconv.FormatFloat(f, 'g', 3, 64) }

// counted returns a number with the word for it: 1 task, 2 tasks.
func counted(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}
