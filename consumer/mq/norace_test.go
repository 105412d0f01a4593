//go:build !race

package mq_test

const raceDetector = false
