"""Train a small GPT with Lightning; resume from the newest checkpoint of its callback.

torchrun --nproc-per-node 2 gpt_lightning.py --steps 60      (needs lightning)

Lightning's checkpoints hold no random states, so the dropout after a restart differs: a drill fails in resume-complete.
"""

import os

import lightning
import torch
from gpt import GPT, Text, cosine, loss_of, options
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader


class Training(lightning.LightningModule):
    def __init__(self, args, characters):
        super().__init__()
        self.args = args
        self.model = GPT(characters, args.length, args.size, args.dropout, args.activation_checkpoints)

    def training_step(self, batch, number):
        tokens, targets = batch
        return loss_of(self.model(tokens), targets)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.args.learning_rate)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine(self.args))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main():
    args = options(__doc__, "gpt-lightning")
    lightning.seed_everything(0)
    text = Text(args.length)
    saves = ModelCheckpoint(args.checkpoint, every_n_train_steps=args.save_every, save_top_k=-1, filename="{step:06d}")
    trainer = lightning.Trainer(
        accelerator="auto",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy="ddp",
        precision="bf16-mixed" if args.bf16 else "32-true",
        max_steps=args.steps,
        accumulate_grad_batches=args.accumulate,
        callbacks=[saves],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    newest = max(args.checkpoint.glob("*.ckpt"), default=None)
    loader = DataLoader(text, args.batch, shuffle=True)
    trainer.fit(Training(args, len(text.characters)), loader, ckpt_path=newest)


if __name__ == "__main__":
    main()
