"""Tests of the resume proof."""
